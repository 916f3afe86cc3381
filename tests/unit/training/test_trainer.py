"""A stopped run continues to the same bits, a head learns, and the curve shows when further training gains nothing."""

import json
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
import torch

from services.generation.drafting.eagle3.checkpoint import Head
from services.generation.drafting.eagle3.loading import load_head
from services.generation.target.files.stored_tensor import StoredTensor
from services.training.head import HeadModule
from services.training.plan import (
    DataPlan,
    Job,
    Minutes,
    OutputInvalid,
    SettingsInvalid,
    Steps,
    TrainingPlan,
    WorkFolder,
)
from services.training.run import CURVE_FILE, Curve, Point, train_head
from services.training.trainer import (
    Ends,
    Trainer,
    coverage,
    export,
    faster_precision,
    frequent_tokens,
    known_head,
    rate_factor,
)
from tests.fakes.rows import tree_rows
from tests.fakes.tiny_families import FAMILIES, draw_vectors
from tests.fakes.tiny_model import TOKENS, make_tiny_model, target_of
from tests.unit.training.material import Material

TOTAL_STEPS = 12
CPU = torch.device("cpu")


def trainer_of(material: Material, precision: str = "float32") -> Trainer:
    plan = TrainingPlan(
        steps_unrolled=3,
        starts_per_pass=80,
        passes_per_step=2,
        precision="bfloat16" if precision == "bfloat16" else "float32",
    )
    return Trainer(
        material.head(), material.teacher(), material.answers, material.recordings, plan, Steps(TOTAL_STEPS), CPU
    )


@pytest.mark.parametrize("family", ["gemma2", "granite"])
def test_the_ends_of_a_base_give_its_distribution(family: str, tmp_path: Path) -> None:
    """Norms around one, and logits that are scaled or capped."""
    base = draw_vectors(make_tiny_model(tmp_path, **FAMILIES[family]))
    target, table = target_of(base), list[int]()
    target.blocks.extend(table, 60)
    output = target.forward(tree_rows(table, 0, TOKENS[:60]), (target.config.layers,))
    ends = Ends.read(base, target.config)
    shares = ends.teacher(target.config.norm_epsilon, torch.arange(384))(torch.from_numpy(output.features))
    torch.testing.assert_close(shares, torch.from_numpy(output.logits).softmax(-1))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_run_that_was_stopped_and_continued_ends_in_the_same_bits(
    precision: str, material: Material, tmp_path: Path
) -> None:
    straight = trainer_of(material, precision=precision)
    straight_reports = [straight.step() for _ in range(TOTAL_STEPS)]

    stopped = trainer_of(material, precision=precision)
    reports = [stopped.step() for _ in range(5)]
    stopped.save(tmp_path / "checkpoint.pt")
    continued = trainer_of(material, precision=precision)
    continued.load(tmp_path / "checkpoint.pt")
    reports += [continued.step() for _ in range(TOTAL_STEPS - 5)]

    assert reports == straight_reports
    for (name, ours), theirs in zip(
        continued.head.state_dict().items(), straight.head.state_dict().values(), strict=True
    ):
        assert torch.equal(ours, theirs), name


def test_a_head_learns_with_the_weights_that_a_server_drafts_with(material: Material, tmp_path: Path) -> None:
    """Weights of 4 bits: what is exported stays as it is when it is rounded again, and is what the last step read."""
    trainer = trainer_of(material)
    trainer.step()
    export(tmp_path / "head", trainer.head, material.target_ids, torch.bfloat16, {})
    stored = load_head(tmp_path / "head", material.target.config).tensors
    assert isinstance(trainer.head, HeadModule)
    for name, learned in {"fc.weight": trainer.head.fc.weight, "lm_head.weight": trainer.head.lm_head.weight}.items():
        drafted = StoredTensor.of_values(name, stored[name]).rounded()
        assert drafted.storage == "q4_1"
        np.testing.assert_allclose(drafted.values(), learned.detach().numpy(), rtol=2e-6)
        original = trainer.head.state_dict()[name.replace("weight", "parametrizations.weight.original")]
        assert not torch.equal(original, learned)


def test_a_checkpoint_of_another_version_is_refused(material: Material) -> None:
    trainer = trainer_of(material)
    state = trainer.state()
    with pytest.raises(OutputInvalid, match="another version of kolm"):
        trainer.restore(state | {"head": material.head().state_dict()})


def test_training_lowers_the_loss_and_changes_every_weight(material: Material) -> None:
    trainer = trainer_of(material)
    before = {name: tensor.clone() for name, tensor in trainer.head.state_dict().items()}
    reports = [trainer.step() for _ in range(TOTAL_STEPS)]
    first, last = sum(reports[0].losses + reports[1].losses), sum(reports[-1].losses + reports[-2].losses)
    assert last < 0.9 * first
    assert all(not torch.equal(before[name], tensor) for name, tensor in trainer.head.state_dict().items())


def test_the_draft_vocabulary_is_what_the_target_says_most(material: Material) -> None:
    ids = frequent_tokens(material.answers, 10, 384).tolist()
    counts = {token: sum(answer.output.count(token) for answer in material.answers) for token in range(384)}
    assert ids == sorted(ids)
    assert min(counts[token] for token in ids) >= max(counts[token] for token in counts if token not in ids)
    assert coverage(material.answers, torch.tensor(ids)) == pytest.approx(
        sum(counts[token] for token in ids) / sum(counts.values())
    )


def test_a_head_that_goes_on_keeps_its_rows_and_takes_the_base_s_for_new_tokens(material: Material) -> None:
    before = material.head()
    old, new = material.target_ids, torch.arange(100, 140)
    known = Head("kolm", before.config, {k: v.detach().numpy() for k, v in before.state_dict().items()}, old.numpy())
    head = known_head(known, replace(before.config, draft_vocab_size=40), material.ends, new)
    for row, token in enumerate(new.tolist()):
        at = (old == token).nonzero()
        expected = before.lm_head.weight[at.item()] if len(at) else material.ends.head[token]
        assert torch.equal(head.lm_head.weight[row], expected)
    assert torch.equal(head.fc.weight, before.fc.weight)


def test_a_checkpoint_of_another_draft_vocabulary_is_refused(material: Material, tmp_path: Path) -> None:
    trainer_of(material).save(tmp_path / "checkpoint.pt")
    other = replace(material, target_ids=torch.arange(len(material.target_ids)))
    with pytest.raises(OutputInvalid):
        trainer_of(other).load(tmp_path / "checkpoint.pt")


def test_the_rate_warms_up_stays_and_falls_to_nothing() -> None:
    assert rate_factor(0.0) < 0.1
    assert rate_factor(0.2) == 1.0
    assert rate_factor(0.65) == pytest.approx(0.5)
    assert rate_factor(1.0) == rate_factor(1.2) == 0.0
    assert Minutes(10).fraction(steps=5, seconds=300.0) == 0.5


@pytest.mark.parametrize(
    ("has", "precision"),
    [
        ({"avx2": True, "avx512f": True, "avx512bf16": False}, "float32"),
        ({"avx512f": True, "avx512bf16": True}, "bfloat16"),
        ({"amx-bf16": True}, "bfloat16"),
        ({"neon": True}, "float32"),
        ({"neon": True, "bf16": True}, "bfloat16"),
        ({}, "float32"),
    ],
)
def test_a_cpu_trains_in_bfloat16_where_it_has_instructions_for_it(
    has: dict[str, bool], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: has)
    assert faster_precision("cpu") == precision
    assert faster_precision("cuda") == "bfloat16"


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_that_the_engine_does_not_take_is_refused(seed: int) -> None:
    with pytest.raises(SettingsInvalid, match="seed"):
        DataPlan(seed=seed).check()


def job_of(material: Material, folder: Path) -> Job:
    prompts = "".join(json.dumps({"prompt": f"Number {number}"}) + "\n" for number in range(8))
    (folder / "prompts.jsonl").write_text(prompts)
    data = DataPlan(max_tokens=4, held_out=0.5)
    paths = {"prompts": (folder / "prompts.jsonl",), "out": folder / "out", "work": folder / "work"}
    return Job(material.base, **paths, budget=Steps(1), data=data)


class Silent:
    """A `Reporter`."""

    def ignore(self, *_: object) -> None:
        """Implements all of its methods."""

    note = answered = stepped = saved = ignore


def test_a_folder_in_which_a_run_goes_on_takes_no_other(material: Material, tmp_path: Path) -> None:
    job = job_of(material, tmp_path)

    def stop() -> bool:
        with pytest.raises(OutputInvalid, match="another run"):
            train_head(job, CPU, Silent(), lambda: True)
        return True

    assert train_head(job, CPU, Silent(), stop) is None
    assert train_head(job, CPU, Silent(), lambda: True) is None


def test_a_folder_whose_plan_is_damaged_is_refused(material: Material, tmp_path: Path) -> None:
    plan, folder = job_of(material, tmp_path).plan(material.target.config, "base", None), WorkFolder(tmp_path / "work")
    for _ in range(2):
        folder.claim(plan)
    (tmp_path / "work" / "plan.json").write_text("{")
    with pytest.raises(OutputInvalid, match=r"plan\.json"):
        folder.claim(plan)


def point(steps: int, length: float) -> Point:
    return Point(100 * steps, steps, length, (0.5, 0.25))


def curve_of(folder: Path, lengths: list[float]) -> Curve:
    curve = Curve(folder)
    for steps, length in enumerate(lengths, 1):
        curve.add(point(steps, length))
    return curve


def test_a_curve_goes_on_from_its_file_and_forgets_what_a_crash_undid(tmp_path: Path) -> None:
    curve_of(tmp_path, [1.1, 1.2, 1.3])
    again = Curve(tmp_path)
    assert again.points == [point(1, 1.1), point(2, 1.2), point(3, 1.3)]
    again.add(point(2, 1.25))
    assert Curve(tmp_path).points == [point(1, 1.1), point(2, 1.25)]
    (tmp_path / CURVE_FILE).write_bytes((tmp_path / CURVE_FILE).read_bytes()[:-20])
    assert Curve(tmp_path).points == [point(1, 1.1)]


@pytest.mark.parametrize(
    ("lengths", "over"),
    [
        ([], False),
        ([1.0] * 6, False),  # too few to judge
        ([1.0] * 7, True),
        ([1.0 + 0.01 * n for n in range(20)], False),
        ([1.5, 1.4, 1.4, 1.4, 1.4, 1.4, 1.502], True),
        ([1.5, 1.4, 1.4, 1.4, 1.4, 1.4, 1.52], False),
    ],
)
def test_a_run_ends_once_the_last_checkpoints_bring_nothing(lengths: list[float], over: bool, tmp_path: Path) -> None:
    assert curve_of(tmp_path, lengths).is_over(0.4) is over
    assert not curve_of(tmp_path, lengths).is_over(0.6)

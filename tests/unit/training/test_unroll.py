"""Heads that are trained compute what heads that draft compute, and every part of them learns."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from services.generation.drafting.block.block_checkpoint import load_block_head
from services.generation.drafting.block.block_pass import BlockPass
from services.generation.drafting.eagle3.head_pass import HeadPass
from services.generation.drafting.eagle3.loading import load_head
from services.generation.target.rows import RowsBuilder
from services.training import unroll as training_unroll
from services.training.block import BlockModule, block_sums
from services.training.kscore import measure
from services.training.plan import Steps, TrainingPlan
from services.training.prompts import Answer
from services.training.trainer import Trainer, export
from services.training.unroll import Passes, Window, step_sums, unroll, window_of
from tests.fakes.rows import chunk_rows
from tests.unit.training.material import PROMPTS, Material
from tests.unit.training.test_trainer import CPU

STEPS = 4


def test_an_epoch_is_cut_once_and_has_every_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[list[int]] = []

    def alone(_: Passes, pool: list[int]) -> list[list[int]]:
        cut.append(pool)
        return [[number] for number in pool]

    monkeypatch.setattr(training_unroll, "_cut", alone)
    passes = Passes([Answer(str(n), "a", 0.0, (1,), (2, 3)) for n in range(3)], starts=1, seed=0)
    for epoch in range(70):
        assert sorted(passes.of_step(epoch, 3)) == [[0], [1], [2]]
    assert len(cut) == 70


def _window(material: Material, numbers: list[int], dtype: torch.dtype = torch.float32) -> Window:
    answers = [material.answers[number] for number in numbers]
    return window_of(answers, material.recordings.of(numbers)).to(torch.device("cpu"), dtype)


def test_every_step_of_every_start_equals_the_head_that_drafts(material: Material, tmp_path: Path) -> None:
    head = material.head()
    export(tmp_path / "head", head, material.target_ids, torch.float32, {})
    loaded = load_head(tmp_path / "head", material.target.config)
    assert loaded.origin == "kolm"
    np.testing.assert_array_equal(loaded.target_ids, material.target_ids.numpy())
    numbers = [0, 3, 5]
    with torch.no_grad():
        unrolled = [(state, head.logits(state)) for state in unroll(head, _window(material, numbers), STEPS)]
    for line, number in enumerate(numbers):
        answer = material.answers[number]
        for start in (0, 1, len(answer.output) - 2):
            drafted = _drafted(loaded, material, number, start)
            for step, (state, logits) in enumerate(drafted):
                torch.testing.assert_close(unrolled[step][0][line, start], state, rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(unrolled[step][1][line, start], logits, rtol=1e-4, atol=1e-4)


def _drafted(loaded, material: Material, number: int, start: int):  # type: ignore[no-untyped-def]
    """States and logits of a draft from `start` on, with the target's tokens."""
    answer, (recording,) = material.answers[number], material.recordings.of([number])
    entry = len(answer.prompt) - 1 + start
    drafting = HeadPass(loaded, material.target.embed, 8, 512)
    table: list[int] = []
    drafting.blocks.extend(table, len(answer.tokens))
    features = torch.from_numpy(recording.features).view(torch.bfloat16).float().numpy()[: entry + 1]
    out = drafting.read(chunk_rows(table, 0, list(answer.tokens[1 : entry + 2])), features)
    states = out.states
    yield torch.from_numpy(states[0].copy()), torch.from_numpy(out.logits[0].copy())
    for step in range(1, min(STEPS, len(answer.output) - 1 - start)):
        out = drafting.step(chunk_rows(table, entry + step, [answer.output[start + step]]), states)
        states = out.states
        yield torch.from_numpy(states[0].copy()), torch.from_numpy(out.logits[0].copy())


@pytest.mark.parametrize("parameter", ["fc.weight", "midlayer.self_attn.v_proj.weight", "midlayer.hidden_norm.weight"])
def test_the_gradient_of_the_last_step_goes_through_all_steps_before_it(parameter: str, material: Material) -> None:
    """Against finite differences in float64: a step that was detached anywhere would give another slope."""
    head, teacher, window = material.head().double(), material.teacher().double(), _window(material, [0, 3])
    window = window.to(torch.device("cpu"), torch.float64)
    last = torch.tensor([0.0] * (STEPS - 1) + [1.0], dtype=torch.float64)
    weight = dict(head.named_parameters())[parameter]
    step_sums(head, teacher, window, last).loss.backward()
    assert weight.grad is not None
    direction = torch.randn_like(weight)
    slope = (weight.grad * direction).sum().item()
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            weight.add_(direction, alpha=sign * 1e-6)
            values.append(step_sums(head, teacher, window, last).loss.item())
            weight.sub_(direction, alpha=sign * 1e-6)
    assert slope == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-4)


def test_the_teacher_s_distribution_is_the_target_s_own_on_the_draft_vocabulary(material: Material) -> None:
    """Its greedy tokens are the target's at temperature 0, its probabilities a softmax over 100 ids."""
    teacher = material.teacher()
    for number, answer in enumerate(material.answers):
        if answer.temperature:
            continue
        (recording,) = material.recordings.of([number])
        shares = teacher(torch.from_numpy(recording.finals).view(torch.bfloat16))
        torch.testing.assert_close(shares.sum(-1), torch.ones(len(answer.output)))
        known = teacher.draft_ids[torch.tensor(answer.output)]
        greedy = shares.argmax(-1)
        assert (greedy == known)[known >= 0].float().mean() > 0.9  # bfloat16 streams may turn a close choice


@pytest.mark.parametrize("cap", [0.0, 2.0])
def test_losses_are_the_cross_entropy_of_every_start_that_counts(material: Material, cap: float) -> None:
    head, teacher, window = (
        material.head(),
        replace(material, ends=replace(material.ends, cap=cap)).teacher(),
        _window(material, [2]),
    )
    answer = material.answers[2]
    with torch.no_grad():
        sums = step_sums(head, teacher, window, torch.ones(2))
        shares = teacher(window.finals)
        drafts = teacher.draft_ids[window.output]
        outputs = list(unroll(head, window, 2))
    for step in (1, 2):
        expected, right = 0.0, 0
        for start in range(len(answer.output) - step):
            if drafts[0, start + step] < 0:
                continue
            logits = head.logits(outputs[step - 1][0, start])
            expected -= (shares[0, start + step] * F.log_softmax(logits, -1)).sum().item()
            right += int(material.target_ids[logits.argmax()] == answer.output[start + step])
        assert sums.losses[step - 1].item() == pytest.approx(expected, rel=1e-4)
        assert sums.right[step - 1].item() == right


TRAINED = 12


def trainer(material: Material, head: BlockModule) -> Trainer:
    plan = TrainingPlan(steps_unrolled=4, starts_per_pass=64, precision="float32")
    return Trainer(head, material.teacher(), material.answers, material.recordings, plan, Steps(TRAINED), CPU)


def test_every_row_of_every_start_equals_the_head_that_drafts(material: Material, tmp_path: Path) -> None:
    head, numbers = material.block(), [0, 3, 5]
    export(tmp_path / "head", head, material.target_ids, torch.float32, {})
    loaded = load_block_head(tmp_path / "head", material.target.config)
    with torch.no_grad():
        states, before = head.states(_window(material, numbers)), head.before(_window(material, numbers))
        logits, sure = head.logits(states, before), head.confidence(states, before).sigmoid()
    size = head.config.block_size
    for line, number in enumerate(numbers):
        answer, recorded = material.answers[number], material.recordings.of([number])[0]
        features = torch.from_numpy(recorded.features).view(torch.bfloat16).float().numpy()
        for start in (0, len(answer.output) - 2):
            computing = BlockPass(loaded, material.target, 4, 256)
            table, length = list[int](), len(answer.prompt) + start
            computing.blocks.extend(table, length + size)
            computing.store(chunk_rows(table, 0, [0] * length, want_last=False), features[:length])
            rows = RowsBuilder()
            rows.add_block(table, length, [answer.output[start], *[head.config.mask_token] * (size - 1)])
            out = computing.draft(rows.build())
            tokens = [*answer.output, *[0] * size][start : start + size]
            found = computing.add_previous(out.logits, out.states, tokens)
            np.testing.assert_allclose(out.states, states[line, start], atol=2e-4)
            np.testing.assert_allclose(found, logits[line, start], atol=2e-3)
            np.testing.assert_allclose(computing.confidence(out.states, tokens), sure[line, start], atol=1e-4)


def test_the_loss_of_a_row_leaves_rows_behind_an_answer_s_end_out(material: Material) -> None:
    head, numbers = material.block(), [0, 1, 2]
    lengths = [len(material.answers[number].output) for number in numbers]
    sums = block_sums(head, material.teacher(), _window(material, numbers), torch.ones(4))
    alone = [block_sums(head, material.teacher(), _window(material, [number]), torch.ones(4)) for number in numbers]
    torch.testing.assert_close(sums.losses, sum(each.losses for each in alone))
    assert sums.losses.shape == (4,)
    assert (sums.right <= torch.tensor([sum(max(0, n - row - 1) for n in lengths) for row in range(4)])).all()


def test_training_lowers_the_loss_changes_every_weight_and_continues_bit_for_bit(
    material: Material, tmp_path: Path
) -> None:
    straight, halves = trainer(material, material.block()), trainer(material, material.block())
    before = {name: tensor.clone() for name, tensor in straight.head.state_dict().items()}
    losses = [sum(straight.step().losses) for _ in range(TRAINED)]
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    assert all(not torch.equal(tensor, before[name]) for name, tensor in straight.head.state_dict().items())
    for _ in range(TRAINED // 2):
        halves.step()
    halves.save(tmp_path / "checkpoint.pt")
    again = trainer(material, material.block(seed=2))
    again.load(tmp_path / "checkpoint.pt")
    for _ in range(TRAINED // 2):
        again.step()
    for name, tensor in straight.head.state_dict().items():
        assert torch.equal(tensor, again.head.state_dict()[name]), name


def test_a_trained_block_is_measured_as_other_heads_are(material: Material, tmp_path: Path) -> None:
    export(tmp_path / "head", material.block(), material.target_ids, torch.bfloat16, {})
    head = load_block_head(tmp_path / "head", material.target.config)
    seen = measure(material.target, head, [prompt.tokens for prompt in PROMPTS[:4]], k=4, max_tokens=12)
    assert seen.prompts == 4
    assert len(seen.acceptance_by_depth) == 4

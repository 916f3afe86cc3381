"""`kolm heads train` as a person runs it: a head at the end, the same command after Ctrl-C, errors to act on."""

import errno
import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from services.generation.drafting.block.block_checkpoint import BlockHead
from services.generation.drafting.eagle3.checkpoint import Head
from services.generation.drafting.eagle3.loading import load_head
from services.generation.drafting.methods import load_head as load_draft_head
from services.generation.target.config.config import read_config
from services.generation.target.target import Target
from services.training import run
from services.training.kscore import Measured, measure
from services.training.plan import StepReport
from services.training.prompts import AnswerFile
from services.training.recordings import ANSWERS, RECORDINGS
from services.training.trainer import Trainer
from tests.cli import Ended, kolm
from tests.fakes.tiny_model import make_tiny_model

PROMPTS = 40
SHORT = ("--steps", "4", "--max-tokens", "8", "--unroll", "2", "--held-out", "0.3", "--precision", "float32")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("base"), layers=4)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every prompt comes twice, under two ids: its twin must not be on the other side of the split."""
    path = tmp_path_factory.mktemp("prompts") / "support.jsonl"
    lines = [{"id": f"{twin}{n}", "prompt": f"ledger {n} keeps"} for n in range(PROMPTS // 2) for twin in "xy"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def train(base: Path, prompts: Path, out: Path, *more: object) -> Ended:
    return kolm("heads", "train", base, "--prompts", prompts, "--out", out, *SHORT, *more)


@pytest.fixture(scope="module")
def straight(base: Path, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head of a run that nothing interrupted; its work folder is beside it."""
    out = tmp_path_factory.mktemp("straight") / "head"
    assert train(base, prompts, out).code == 0
    return out


@pytest.fixture(scope="module")
def small(base: Path, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """A head of few words, and the output of its training."""
    out = tmp_path_factory.mktemp("small") / "head"
    return out, train(base, prompts, out, "--draft-vocabulary", "64", "--json")


def test_a_head_is_trained_measured_and_loads_for_its_base(base: Path, small: tuple[Path, Ended]) -> None:
    out, (code, printed, talk) = small
    assert code == 0, talk
    assert "float32" in talk
    figures = json.loads(printed)["held_out_acceptance"]
    assert figures.keys() == {"support"}
    assert 1.0 <= figures["support"]["mean_length"] <= 5.0
    head = load_head(out, read_config(base))
    assert (head.origin, head.config.draft_vocab_size, head.config.feature_layers) == ("kolm", 64, (1, 2))
    facts = json.loads((out / "training.json").read_text())
    assert (facts["steps"], facts["answers"] > 10) == (4, True)
    assert facts["held_out_acceptance"]["support"]["tokens"] == figures["support"]["tokens"]


def test_a_block_head_is_trained_measured_and_loads_for_its_base(base: Path, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "head"
    shape = ("--kind", "block", "--layers", "1", "--draft-vocabulary", "64", "--unroll", "3")
    code, printed, talk = train(base, prompts, out, *shape, "--json")
    assert code == 0, talk
    assert 1.0 <= json.loads(printed)["held_out_acceptance"]["support"]["mean_length"] <= 4.0
    head = load_draft_head(out, read_config(base))
    assert isinstance(head, BlockHead)
    assert (head.config.layers, head.config.block_size, head.config.draft_vocab_size) == (1, 3, 64)
    assert train(base, prompts, tmp_path / "other", "--layers", "2")[0] == 2


def test_no_held_out_prompt_is_trained_on(
    base: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: set[tuple[int, ...]] = set()

    def noted(target: Target, head: Head, prompts: list[tuple[int, ...]], **options: Any) -> Measured:
        measured.update(prompts)
        return measure(target, head, prompts, **options)

    monkeypatch.setattr(run, "measure", noted)
    assert train(base, prompts, tmp_path / "head")[0] == 0
    learned = {answer.prompt for answer in AnswerFile(tmp_path / "head.work" / "train" / ANSWERS)}
    assert len(learned) < PROMPTS // 2
    assert not learned & measured


@pytest.mark.parametrize("recompute", [False, True])
def test_after_ctrl_c_the_same_command_goes_on_to_the_same_bits(
    recompute: bool, straight: Path, base: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether features are kept or computed again makes no difference either."""
    more = ["--recompute"] if recompute else []
    step = Trainer.step

    def interrupted(self: Trainer) -> StepReport:
        if self.steps == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self)

    monkeypatch.setattr(Trainer, "step", interrupted)
    assert train(base, prompts, tmp_path / "head", *more)[0] == 130
    assert not (tmp_path / "head").exists()
    monkeypatch.undo()
    done = train(base, prompts, tmp_path / "head", *more)
    assert (done.code, "2 steps" in done.err) == (0, True)  # of before
    assert (tmp_path / "head/model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()
    assert (tmp_path / "head.work" / "train" / RECORDINGS).exists() is not recompute


def test_a_head_goes_on_from_another_and_keeps_its_shape_rotations_and_length(
    small: tuple[Path, Ended], base: Path, prompts: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(small[0], first)
    document = json.loads((first / "config.json").read_text())
    document["rope_parameters"]["rope_theta"], document["max_position_embeddings"] = 77_000.0, 640
    (first / "config.json").write_text(json.dumps(document))
    code, _, talk = train(base, prompts, second, "--start-from", first)
    assert code == 0, talk
    assert json.loads((second / "config.json").read_text()) == document
    before, after = (load_head(folder, read_config(base)) for folder in (first, second))
    assert before.config == after.config
    assert (before.target_ids == after.target_ids).all()
    assert not np.array_equal(before.tensors["fc.weight"], after.tensors["fc.weight"])
    tensors = load_file(first / "model.safetensors")
    tensors["fc.weight"] += 1.0
    save_file(tensors, first / "model.safetensors")  # another head cannot go on with that run
    assert train(base, prompts, tmp_path / "again", "--start-from", first, "--work", tmp_path / "second.work").code == 2


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("", ""),
        ("{\n", "line 1"),
        ('{"prompt": "a"}\n[]\n', "line 2"),
        ('{"text": "a"}\n', "line 1"),
        ('{"prompt": ""}\n', "line 1"),
        ('{"messages": [{"role": "cook", "content": "a"}]}\n', "line 1"),
        ('{"messages": [{"content": "a"}]}\n', "line 1"),
        ('{"messages": [{"role": "user", "content": null}]}\n', "line 1"),
        ('{"messages": [{"role": "user", "content": "a", "tool_calls": null}]}\n', "line 1"),
        ('{"prompt": "a\xe2\x80\xa8b"}\n[]\n', "line 2"),  # U+2028, which ends no line of JSON
        ('{"id": "a", "prompt": "b"}\n{"id": "a", "prompt": "c"}\n', "'a'"),
        ('{"id": 7, "prompt": "b"}\n', "id"),
        ('{"prompt": "only one"}\n', ""),
        (json.dumps({"prompt": "ledger " * 600}) + "\n", "503 tokens"),
        ("\xff", ""),
    ],
)
def test_prompts_that_are_none_are_refused(content: str, place: str, base: Path, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content.encode("latin-1"))
    done = train(base, path, tmp_path / "head")
    assert (done.code, place in done.err) == (2, True), done.err
    assert not (tmp_path / "head").exists()


def test_an_out_folder_that_is_in_use_is_never_written_over(base: Path, prompts: Path, tmp_path: Path) -> None:
    (tmp_path / "head").mkdir()
    (tmp_path / "head" / "thesis.txt").write_text("mine")
    assert train(base, prompts, tmp_path / "head")[0] == 2
    assert [path.name for path in (tmp_path / "head").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("more", "named", "remedies"), [((), RECORDINGS, ["--recompute"]), (("--recompute",), ANSWERS, [])]
)
def test_a_full_disk_ends_the_run_and_loses_nothing(
    more: tuple[str, ...], named: str, remedies: list[str],
    base: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    append = AnswerFile.append

    def full(self: AnswerFile, answers: Any) -> None:
        if "train" in str(self.path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, answers)

    monkeypatch.setattr(AnswerFile, "append", full)
    done = train(base, prompts, tmp_path / "head", *more)
    assert (done.code, named in done.err, re.findall("--recompute", done.err)) == (1, True, remedies), done.err
    monkeypatch.undo()
    assert train(base, prompts, tmp_path / "head", *more)[0] == 0


@pytest.mark.parametrize("architecture", ["mistral", "qwen2", "qwen3"])
def test_every_architecture_that_is_served_can_have_a_head(architecture: str, prompts: Path, tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
    other = make_tiny_model(tmp_path / "base", architecture=architecture, layers=4, rope_parameters=yarn)
    code, _, talk = train(other, prompts, tmp_path / "head")
    assert code == 0, talk
    assert load_head(tmp_path / "head", read_config(other)).config.rope["rope_type"] == "yarn"

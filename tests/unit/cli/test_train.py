"""Flags of `kolm heads train`, and what it says meanwhile."""

from __future__ import annotations

import io
from itertools import count
from pathlib import Path

import pytest
import typer
from rich.console import Console
from rich.progress import Progress
from typer.testing import CliRunner

from services.cli.heads import train as training
from services.cli.heads.train import TerminalReporter
from services.cli.main import app
from services.training import devices
from services.training.plan import Job

USUAL = {"--steps": "4"}
CHANGED = {
    "--work": "elsewhere", "--minutes": "5", "--steps": "5", "--answering-minutes": "1", "--temperatures": "0,1",
    "--max-tokens": "9", "--held-out": "0.4", "--feature-layers": "1,2", "--draft-vocabulary": "9",
    "--intermediate": "9", "--unroll": "3", "--decay": "0.9", "--starts": "65", "--passes": "2",
    "--start-from": "{head}", "--kind": "block", "--layers": "3",
    "--precision": "float32", "--recompute": "", "--device": "cpu", "--seed": "1",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("flag", CHANGED)
def test_every_flag_changes_the_job(flag: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that was forgotten on the way would be accepted and do nothing."""
    jobs: list[tuple[Job, str | None]] = []
    monkeypatch.setattr(devices, "faster_precision", lambda device: "bfloat16")
    monkeypatch.setattr(training, "run", lambda job, device: jobs.append((job, device)))
    (head := tmp_path / "head").mkdir()
    (head / "config.json").touch()
    (prompts := tmp_path / "prompts").touch()
    budget = {} if flag == "--minutes" else USUAL
    for flags in (USUAL, budget | {flag: CHANGED[flag]}):
        words = [word for pair in flags.items() for word in pair if word]
        words = [word.format(head=head) for word in words]
        files = [str(head), f"--prompts={prompts}", f"--out={tmp_path / 'out'}"]
        done = CliRunner().invoke(app, ["heads", "train", *files, *words])
        assert done.exit_code == 130, done.output  # as if stopped on the way
    usual, changed = jobs
    assert usual != changed


def test_every_flag_is_among_those() -> None:
    own = {"--prompts", "--out", "--json", "--help", "-h"}
    command = typer.main.get_command(app).commands["heads"].commands["train"]  # type: ignore[attr-defined]
    flags = {flag for option in command.params for flag in option.opts if flag.startswith("-")}
    assert flags - own == CHANGED.keys()


def test_answers_are_counted_in_a_line_every_few_seconds() -> None:
    written = io.StringIO()
    seconds = count(step=2.0)
    reporter = TerminalReporter(Progress(console=Console(file=written), disable=True), lambda: next(seconds))
    for done in range(1, 41):
        reporter.answered("chat", done, 40)
    lines = written.getvalue().splitlines()
    assert lines[0] == "answers chat 2%  1 of 40"
    assert 3 < len(lines) < 20

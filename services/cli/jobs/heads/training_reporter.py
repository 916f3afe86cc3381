"""A training run as a person sees it: progress bars with loss and acceptance."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from services.cli.terminal.progress import bars
from services.training.plan import StepReport

_LINE_SECONDS = 10.0
"""Between two lines where there is no terminal."""
_SMOOTHING = 0.95
"""Weight of the past in the figures that are shown."""


class TerminalReporter:
    """Implements `Reporter`: progress bars on a terminal, elsewhere a line every few seconds."""

    def __init__(self, progress: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._progress = progress
        self._clock, self._shown_at = clock, -_LINE_SECONDS
        self._tasks: dict[str, TaskID] = {}
        self._losses: Sequence[float] | None = None
        self._acceptance: Sequence[float] | None = None
        self._starts, self._since = 0, clock()

    def said(self, line: str) -> None:
        self._progress.console.print(line, soft_wrap=True)

    def answered(self, what: str, done: int, total: int) -> None:
        self._since = self._clock()
        self._show(f"answers {what}", done / total, f"{done:,} of {total:,}")

    def stepped(self, fraction: float, steps: int, report: StepReport) -> None:
        self._losses = _smooth(self._losses, report.losses)
        self._acceptance = _smooth(self._acceptance, report.acceptance)
        self._starts += report.starts
        self._show("training", fraction, f"step {steps}  {self._figures()}")

    def saved(self, steps: int, snapshot: Path) -> None:
        self._progress.console.print(f"step {steps}  {self._figures()}  saved {snapshot}", soft_wrap=True)

    def _figures(self) -> str:
        if self._losses is None or self._acceptance is None:
            return "no step yet"
        losses = " ".join(f"{loss:.2f}" for loss in self._losses)
        accepted = " ".join(f"{share:.0%}" for share in self._acceptance)
        speed = self._starts / (self._clock() - self._since)
        return f"loss {losses}  right {accepted}  {speed:.0f} tokens/s"

    def _show(self, task: str, fraction: float, text: str) -> None:
        if task not in self._tasks:
            self._tasks[task] = self._progress.add_task(task, total=1.0, text="")
        self._progress.update(self._tasks[task], completed=fraction, text=text)
        if self._progress.disable and self._clock() - self._shown_at >= _LINE_SECONDS:
            self._shown_at = self._clock()
            self.said(f"{task} {fraction:.0%}  {text}")


@contextmanager
def terminal_reporter() -> Iterator[TerminalReporter]:
    """A reporter whose bars go with the block."""
    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=16), TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[text]}"),
    )  # fmt: skip
    with bars(*columns) as progress:
        yield TerminalReporter(progress)


def _smooth(past: Sequence[float] | None, now: Sequence[float]) -> Sequence[float]:
    if past is None:
        return now
    return [_SMOOTHING * a + (1 - _SMOOTHING) * b for a, b in zip(past, now, strict=True)]

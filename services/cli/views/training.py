"""A training run as a person sees it: a progress bar with loss and acceptance, a clean stop, figures at the end."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from services.cli.output import table, talk

if TYPE_CHECKING:
    from services.training.acceptance import Acceptance
    from services.training.head.trainer import StepReport

_SMOOTHING = 0.95
"""Weight of the past in the figures that are shown."""


class TrainingView:
    """`Reporter` on a terminal; without one it prints a line for each checkpoint."""

    def __init__(self, console: Console, bar: Progress) -> None:
        self._console, self._progress = console, bar
        self._tasks: dict[str, TaskID] = {}
        self._losses: Sequence[float] | None = None
        self._acceptance: Sequence[float] | None = None
        self._starts, self._since = 0, time.monotonic()

    def said(self, line: str) -> None:
        self._console.print(line, soft_wrap=True)

    def answered(self, what: str, done: int, total: int) -> None:
        self._since = time.monotonic()
        self._show(f"answers {what}", done / total, f"{done:,} of {total:,}")

    def stepped(self, fraction: float, steps: int, report: StepReport) -> None:
        self._losses = _smooth(self._losses, report.losses)
        self._acceptance = _smooth(self._acceptance, report.acceptance)
        self._starts += report.starts
        self._show("training", fraction, f"step {steps}  {self._figures()}")

    def saved(self, steps: int, snapshot: Path) -> None:
        self._console.print(f"step {steps}  {self._figures()}  saved {snapshot}", soft_wrap=True)

    def _figures(self) -> str:
        if self._losses is None or self._acceptance is None:
            return "no step yet"
        losses = " ".join(f"{loss:.2f}" for loss in self._losses)
        speed = self._starts / (time.monotonic() - self._since)
        return f"loss {losses}  right {' '.join(f'{share:.0%}' for share in self._acceptance)}  {speed:.0f} tokens/s"

    def _show(self, task: str, fraction: float, text: str) -> None:
        if task not in self._tasks:
            self._tasks[task] = self._progress.add_task(task, total=1.0, text="")
        self._progress.update(self._tasks[task], completed=fraction, text=text)


@contextmanager
def training_view() -> Iterator[TrainingView]:
    console = talk()
    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=16), TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[text]}"),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield TrainingView(console, progress)


class StopRequest:
    """Raised by Ctrl-C or SIGTERM; the step under way is finished and saved first."""

    def __init__(self) -> None:
        self._raised = False

    def __call__(self) -> bool:
        return self._raised

    @contextmanager
    def listening(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._raise) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        self._raised = True


def acceptance_table(found: Mapping[str, Acceptance]) -> Table:
    """Held-out acceptance by domain: mean length, and the share of drafts accepted to each depth."""
    depths = len(next(iter(found.values())).accepted)
    names = [f"depth {depth}" for depth in range(1, depths + 1)]
    made = table("domain", "tokens", "mean length", *names, right=("tokens", "mean length", *names))
    for domain, each in found.items():
        shares = [f"{share:.0%}" for share in each.by_depth]
        made.add_row(domain, f"{each.tokens:,}", f"{each.mean_length:.2f}", *shares)
    return made


def _smooth(past: Sequence[float] | None, now: Sequence[float]) -> Sequence[float]:
    if past is None:
        return now
    return [_SMOOTHING * a + (1 - _SMOOTHING) * b for a, b in zip(past, now, strict=True)]

"""Reports of a run; its caller decides how they look."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StepReport:
    """Measures of an optimiser step, over all devices. Per draft step: loss in nats, share of right guesses."""

    losses: tuple[float, ...]
    acceptance: tuple[float, ...]
    starts: int


class Reporter(Protocol):
    """Called by the leading process, on its thread."""

    def said(self, line: str) -> None:
        """A fact worth a line."""
        ...

    def answered(self, what: str, done: int, total: int) -> None:
        """The target is answering prompts."""
        ...

    def stepped(self, fraction: float, steps: int, report: StepReport) -> None:
        """An optimiser step is done."""
        ...

    def saved(self, steps: int, snapshot: Path) -> None:
        """A checkpoint is on disk, and a head that can be used as it is."""
        ...


class Quiet:
    """Reports to nobody."""

    def said(self, line: str) -> None: ...

    def answered(self, what: str, done: int, total: int) -> None: ...

    def stepped(self, fraction: float, steps: int, report: StepReport) -> None: ...

    def saved(self, steps: int, snapshot: Path) -> None: ...

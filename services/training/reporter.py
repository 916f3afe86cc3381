"""Reports of a run; its caller decides how they look."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from services.training.head.trainer import StepReport


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

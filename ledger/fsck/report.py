"""The depth of an fsck, and its report."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from ledger.errors import StoreDamaged


class Depth(IntEnum):
    """How much is read: `quick` takes the same time for every log, the others grow with it."""

    QUICK = 0
    STRUCTURE = 1
    DEEP = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: the table, the key of the row (None for the table as a whole), and how."""

    table: str
    row: object
    problem: str

    def __str__(self) -> str:
        return f"{self.table}: {self.problem}" if self.row is None else f"{self.table} row {self.row}: {self.problem}"


@dataclass(frozen=True, slots=True)
class FsckReport:
    """The findings, in the order in which they were found. `size` entries were read; no checkpoint covers
    `unsigned` of them yet.

    A crash leaves entries without a checkpoint; the next start checks and signs them.
    """

    depth: Depth
    size: int
    unsigned: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not self.findings


def unreadable(depth: Depth, damage: StoreDamaged, what: str = "database") -> FsckReport:
    """The report on a database, or a guard, that could not even be opened."""
    return FsckReport(depth, 0, 0, (Finding(what, None, str(damage)),))

"""The contract of a schedule, with its leases, jobs and turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

WAITING, LEASED, DEAD = "WAITING", "LEASED", "DEAD"


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to examine one receipt until it expires or is given back. `attempts` counts this one."""

    receipt_index: int
    holder: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Job:
    """One line of the schedule. `state` is WAITING (for an attempt), LEASED or DEAD; `until` in Unix seconds."""

    receipt_index: int
    state: str
    label: str
    until: float
    attempts: int
    error: str


@dataclass(frozen=True, slots=True)
class DrawTurn:
    """The right to draw. `envelope` is a draw that was signed before and may not have reached the log yet."""

    holder: str
    envelope: bytes | None


class Schedule(Protocol):
    """Divides work between any number of auditors that share one database.

    It only schedules: owed receipts and their verdicts follow from the log, and an empty schedule is a correct one.
    Concurrency: every method is atomic, from any process and any thread. A lease belongs to one holder until it
    expires, so no two examine a receipt at once unless one of them has been away for longer than a lease. Errors:
    ScheduleError where the database fails.
    """

    def lease(self, candidates: Sequence[int]) -> Lease | None:
        """The first of these receipts that nobody holds, that does not pause and is not dead; None where all are.

        One that has been leased `max_attempts` times without an end is dead from here on.
        """
        ...

    def renew(self, lease: Lease) -> bool:
        """The heartbeat: another full term from now. False where the lease has expired and somebody else took it."""
        ...

    def finish(self, lease: Lease) -> None:
        """The receipt has its verdict: the job is gone."""
        ...

    def give_back(self, lease: Lease) -> None:
        """As if it had never been leased: nothing was tried, or the reason was not the receipt."""
        ...

    def put_back(self, lease: Lease, error: str) -> None:
        """The attempt failed: again after a pause, dead after `max_attempts`."""
        ...

    def jobs(self) -> tuple[Job, ...]:
        """Everything on the schedule, in index order."""
        ...

    def forget(self, receipt_indexes: Iterable[int]) -> None:
        """Take jobs off that nobody holds: settled in the log, or dead ones that are to be tried afresh."""
        ...

    def take_draw(self) -> DrawTurn | None:
        """The right to draw; None while somebody else has it."""
        ...

    def keep_draw(self, turn: DrawTurn, envelope: bytes) -> bool:
        """Keep a signed draw before it is sent, so that no other one gets into the log: a caller who could make an
        auditor sign again could choose. False where the turn has been lost.
        """
        ...

    def end_draw(self, turn: DrawTurn, *, done: bool) -> None:
        """Give the right back; `done` where the draw that was kept is in the log or void."""
        ...

    def close(self) -> None:
        """Release connections."""
        ...

"""A receipt that an auditor owes a replay; for a whole log, whether every sampled receipt got its verdict in time."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.documents.audit import NO_ANSWERS, AuditPolicy

UNDRAWN, OWED, LATE, OVERDUE, JUDGED = "UNDRAWN", "OWED", "LATE", "OVERDUE", "JUDGED"
STATES = (UNDRAWN, OWED, OVERDUE, LATE, JUDGED)


@dataclass(frozen=True, slots=True)
class Obligation:
    """A receipt that is owed a verdict, or may turn out to be.

    `policy_index` is the entry of the policy that was in force, None where none was (a deviation that the issuer
    itself receipted is owed without one). `draw_index` is the entry of the draw that sampled it, None where nothing
    was or has been drawn. `due_by` is the promised time, "" where none was promised. The verdict is the first one;
    `independent` says whether it names an engine of the auditor's own.
    """

    index: int
    receipt_id: str
    rate: float
    due_by: str
    policy_index: int | None
    sampled: bool
    draw_index: int | None = None
    verdict_index: int | None = None
    outcome: str | None = None
    judged_at: str | None = None
    independent: bool = False

    def state(self, now: str) -> str:
        """One of STATES at document time `now`. LATE is judged after the promised time, OVERDUE not even then."""
        if self.judged_at is not None:
            return LATE if self._past(self.judged_at) else JUDGED
        if self._past(now):
            return OVERDUE
        return OWED if self.sampled else UNDRAWN

    def _past(self, time: str) -> bool:
        return self.due_by != "" and time > self.due_by


@dataclass(frozen=True, slots=True)
class Completeness:
    """Whether every sampled receipt has its verdict in time.

    `outcomes` counts the verdicts on sampled receipts; UNREPLAYABLE, UNSTABLE and UNCHECKED among them are answers and
    no pass. `overdue` are receipts without a verdict past their promised time, drawn or not; `late` those judged past
    it. `void_draws` are the entries of draws over another log than this one: the auditor was shown a different one.
    `unpromised` counts receipts that stand before any policy. `as_of` is the document time that it was judged by.
    `independent` counts those among the EXACT verdicts that an engine of the auditor's own stands behind; the others
    are the word of the audited server.
    """

    as_of: str
    outcomes: dict[str, int]
    late: tuple[Obligation, ...]
    overdue: tuple[Obligation, ...]
    owed: int
    undrawn: int
    unpromised: int
    void_draws: tuple[int, ...]
    policies: tuple[tuple[int, AuditPolicy], ...]
    independent: int = 0

    @property
    def kept(self) -> bool:
        """Whether the promise has been kept so far. A verdict that is owed and not yet due breaks nothing."""
        return not (self.late or self.overdue or self.void_draws)

    @property
    def unreplayable(self) -> int:
        """Sampled receipts whose replay or check was impossible: never a pass."""
        return sum(self.outcomes.get(outcome, 0) for outcome in NO_ANSWERS)

    @property
    def problem(self) -> str | None:
        """The first broken promise in a sentence, None where the promise is kept."""
        if self.void_draws:
            return f"entry {self.void_draws[0]}: this draw is over another log than this one"
        for broken, what in ((self.overdue, "has no verdict"), (self.late, "got its verdict too late")):
            if broken:
                first = broken[0]
                return f"entry {first.index}: {what}, promised by {first.due_by} ({len(broken)} such receipts)"
        return None

"""An obligation of an auditor to replay a receipt, and the completeness of all obligations of a log."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.documents.audit import NO_ANSWERS, AuditPolicy

UNDRAWN, OWED, LATE, OVERDUE, JUDGED = "UNDRAWN", "OWED", "LATE", "OVERDUE", "JUDGED"


@dataclass(frozen=True, slots=True)
class Obligation:
    """A receipt that is owed a verdict, or may be after a draw. `policy_index` is the entry of the policy in force,
    None without a policy (a deviation that the issuer's own receipt admits is owed without one). `draw_index` is the
    entry of the draw that sampled it, None without a draw. `due_by` is the promised time, "" without a promise. The
    verdict is the first one; `independent` is true if it names an engine of the auditor.
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
        """The state at document time `now`. LATE: the verdict came after the promised time; OVERDUE: it is missing."""
        if self.judged_at is not None:
            return LATE if self._past(self.judged_at) else JUDGED
        if self._past(now):
            return OVERDUE
        return OWED if self.sampled else UNDRAWN

    def _past(self, time: str) -> bool:
        return self.due_by != "" and time > self.due_by


@dataclass(frozen=True, slots=True)
class Completeness:
    """The completeness of an audit: whether every sampled receipt has its verdict in time.

    `outcomes` counts the verdicts on sampled receipts; UNREPLAYABLE, UNSTABLE and UNCHECKED among them are answers, but
    no pass. `overdue` has receipts without a verdict after their promised time, drawn or not; `late` has receipts with
    a verdict after it. `void_draws` has the entries of draws over another log: the auditor was shown a different log.
    `unpromised` counts receipts before any policy. `as_of` is the document time of this judgement. `independent` counts
    the EXACT verdicts by an engine of the auditor; the others rest on the audited server's answer.
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
    def is_kept(self) -> bool:
        """Whether the promise has been kept so far. A verdict that is not yet due breaks nothing."""
        return not (self.late or self.overdue or self.void_draws)

    @property
    def unreplayable(self) -> int:
        """Sampled receipts whose replay or check was impossible: never a pass."""
        return sum(self.outcomes.get(outcome, 0) for outcome in NO_ANSWERS)

    @property
    def problem(self) -> str | None:
        """A description of the first broken promise, None if the promise is kept."""
        if self.void_draws:
            return f"entry {self.void_draws[0]}: this draw is over another log than this one"
        for broken, what in ((self.overdue, "has no verdict"), (self.late, "got its verdict too late")):
            if broken:
                first = broken[0]
                return f"entry {first.index}: {what}, promised by {first.due_by} ({len(broken)} such receipts)"
        return None

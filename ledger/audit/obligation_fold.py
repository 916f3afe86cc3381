"""The fold of a log into the receipts that an auditor has to replay, and whether it kept its promise.

An `AuditPolicy` promises a rate and a time for the receipts after it. A `Draw` decides about the receipts in the tree
that it signs: the sample cannot be known before, and any reader can recompute it afterwards. At rate 1, and for a
receipt whose issuer's own replay deviated, nothing is drawn: a verdict is owed as soon as the log holds the receipt.

    fold = ObligationFold()
    for data in entries:
        entry = Entry.from_bytes(data)
        fold.observe(leaf_hash(data), entry.envelope, open_document(entry.envelope, trusted))
    print(fold.completeness().problem)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from ledger.audit.log_clock import Moment
from ledger.audit.obligation import LATE, OVERDUE, OWED, UNDRAWN, Completeness, Obligation
from ledger.documents.audit import EXACT, OUTCOMES, OWN_OUTCOMES, AuditPolicy, Draw, Verdict, draw_seed, is_sampled
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import Document
from ledger.encoding.text_forms import moved, timestamp
from ledger.keys.envelope import Envelope
from ledger.tree.merkle import Frontier
from ledger.tree.multiproof import GrowingTree


@dataclass(slots=True)
class ObligationFold:
    """The fold; not thread-safe. Entries come in order from 0, and the caller has checked the signatures of their
    documents. With `keep_judged` every sampled receipt stays listed; without it only open ones, so that memory grows
    with the open work and not with the log.
    """

    keep_judged: bool = True
    policies: list[tuple[int, AuditPolicy]] = field(default_factory=list)
    void_draws: list[int] = field(default_factory=list)
    unpromised: int = 0
    latest: str = ""
    """The latest time that counts, of receipts, policies, draws and verdicts."""

    _auditor_spoke: str = ""
    _base: GrowingTree = field(default_factory=GrowingTree)
    _leaves: list[bytes] = field(default_factory=list)  # from the base on; a draw may still decide about them
    _dated_ahead: set[int] = field(default_factory=set)
    """Receipts whose own time does not count, until the log names a later time than before them."""
    _undrawn: dict[int, Obligation] = field(default_factory=dict)
    _open: dict[int, Obligation] = field(default_factory=dict)
    _judged: list[Obligation] = field(default_factory=list)
    _late: list[Obligation] = field(default_factory=list)
    _outcomes: Counter[str] = field(default_factory=Counter)
    _independent: int = 0

    @property
    def size(self) -> int:
        """The number of entries observed."""
        return self._base.size + len(self._leaves)

    @property
    def policy(self) -> AuditPolicy | None:
        """The policy in force for the next receipt."""
        return self.policies[-1][1] if self.policies else None

    def undrawn(self) -> tuple[Obligation, ...]:
        """Receipts without a draw, in order."""
        return tuple(self._undrawn.values())

    def owed(self) -> tuple[Obligation, ...]:
        """Sampled receipts without a verdict, in the order of sampling."""
        return tuple(self._open.values())

    def owed_by_index(self) -> Mapping[int, Obligation]:
        """`owed` by index."""
        return self._open

    def judged(self) -> tuple[Obligation, ...]:
        """Sampled receipts with their first verdict, if `keep_judged`."""
        return tuple(self._judged)

    def all(self) -> tuple[Obligation, ...]:
        """All listed receipts, in index order."""
        return tuple(sorted((*self._undrawn.values(), *self._open.values(), *self._judged), key=lambda one: one.index))

    def lists(self, index: int) -> bool:
        """Whether receipt `index` waits for a draw or for a verdict."""
        return index in self._undrawn or index in self._open

    def observe(self, leaf: bytes, envelope: Envelope, document: Document | None, moment: Moment | None = None) -> None:
        """Fold the next entry; `leaf` is its RFC 6962 leaf hash, `document` is None if it does not count. `moment` is
        its time by the log's clock; None takes the document's own time.
        """
        index = self.size
        moment = moment or Moment.of(document)
        match document:
            case Receipt():
                self._receive(index, document, moment)
            case AuditPolicy():
                self.policies.append((index, document))
                self._hear(moment)
            case Draw():
                self._hear(moment)
                self._draw(index, document, envelope)
            case Verdict():
                self._hear(moment)
                self._judge(index, document, moment.time)
        self._grow(leaf)

    def root_at(self, size: int) -> bytes | None:
        """The root over the first `size` entries; None if they are beyond the log, or before any receipt that a draw
        could decide about.
        """
        frontier = self._frontier_at(size)
        return None if frontier is None else frontier.root()

    def completeness(self, now: datetime | None = None) -> Completeness:
        """Whether the promise is kept at `now`; None is the log's latest time."""
        as_of = self.latest if now is None else timestamp(now)
        waiting = (*self._undrawn.values(), *self._open.values())
        overdue = sorted((one for one in waiting if one.state(as_of) == OVERDUE), key=lambda one: one.index)
        return Completeness(
            as_of=as_of,
            outcomes={name: self._outcomes[name] for name in OUTCOMES if name in OWN_OUTCOMES or self._outcomes[name]},
            late=tuple(self._late),
            overdue=tuple(overdue),
            owed=sum(one.state(as_of) == OWED for one in self._open.values()),
            undrawn=sum(one.state(as_of) == UNDRAWN for one in self._undrawn.values()),
            unpromised=self.unpromised,
            void_draws=tuple(self.void_draws),
            policies=tuple(self.policies),
            independent=self._independent,
        )

    def take_late(self) -> tuple[Obligation, ...]:
        """Return the late receipts and forget them, for a caller that keeps its own count."""
        late, self._late = tuple(self._late), []
        return late

    def to_document(self) -> dict[str, Any]:
        """The fold as JSON, to continue from, without judged receipts."""
        return {
            "policies": [[index, policy.to_document()] for index, policy in self.policies],
            "void_draws": self.void_draws,
            "unpromised": self.unpromised,
            "latest": self.latest,
            "auditor_spoke": self._auditor_spoke,
            "dated_ahead": sorted(self._dated_ahead),
            "base": self._base.frontier().to_document(),
            "leaves": [leaf.hex() for leaf in self._leaves],
            "undrawn": [asdict(one) for one in self._undrawn.values()],
            "open": [asdict(one) for one in self._open.values()],
            "late": [asdict(one) for one in self._late],
            "outcomes": dict(self._outcomes),
            "independent": self._independent,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> ObligationFold:
        """The fold that `to_document` wrote, with `keep_judged` off. Trusts the document, which the caller has kept."""
        return cls(
            keep_judged=False,
            policies=[(index, AuditPolicy.from_document(policy)) for index, policy in document["policies"]],
            void_draws=list(document["void_draws"]),
            unpromised=document["unpromised"],
            latest=document["latest"],
            _auditor_spoke=document["auditor_spoke"],
            _dated_ahead=set(document["dated_ahead"]),
            _base=GrowingTree(Frontier.from_document(document["base"])),
            _leaves=[bytes.fromhex(leaf) for leaf in document["leaves"]],
            _undrawn={one["index"]: Obligation(**one) for one in document["undrawn"]},
            _open={one["index"]: Obligation(**one) for one in document["open"]},
            _late=[Obligation(**one) for one in document["late"]],
            _outcomes=Counter(document["outcomes"]),
            _independent=document["independent"],
        )

    def _receive(self, index: int, receipt: Receipt, moment: Moment) -> None:
        self._see(moment)
        if moment.ahead:
            self._dated_ahead.add(index)
        # The issuer's own replay deviated: its halt must not depend on a draw.
        confesses = receipt.spec_decode.verified_identical_to_off is False
        if not self.policies and not confesses:
            self.unpromised += 1
            return
        obligation = self._promised(index, receipt, moment.time)
        self.unpromised += obligation.policy_index is None
        if confesses or obligation.rate == 1.0:
            self._open[index] = replace(obligation, sampled=True)
        elif obligation.rate > 0.0:
            self._undrawn[index] = obligation

    def _promised(self, index: int, receipt: Receipt, time: str) -> Obligation:
        if not self.policies:
            return Obligation(index, receipt.receipt_id, 0.0, "", None, False)
        policy_index, policy = self.policies[-1]
        # It may have waited in a spool: the log took it only after the auditor's previous document.
        due = moved(max(time, self._auditor_spoke), policy.within_seconds)
        return Obligation(index, receipt.receipt_id, policy.rate, due, policy_index, False)

    def _draw(self, index: int, draw: Draw, envelope: Envelope) -> None:
        if draw.tree_size < self._base.size:
            return  # an earlier draw has decided about all of them
        frontier = self._frontier_at(draw.tree_size)
        if len(envelope.signatures) != 1 or frontier is None or frontier.root() != draw.root_hash:
            self.void_draws.append(index)
            return
        seed = draw_seed(envelope)
        for receipt_index in [waiting for waiting in self._undrawn if waiting < draw.tree_size]:
            waiting = self._undrawn.pop(receipt_index)
            if is_sampled(seed, receipt_index, waiting.rate):
                self._sampled(replace(waiting, sampled=True, draw_index=index))
        self._rebase(frontier)

    def _sampled(self, obligation: Obligation) -> None:
        if obligation.judged_at is None:
            self._open[obligation.index] = obligation
        else:
            self._settle(obligation)

    def _judge(self, index: int, verdict: Verdict, time: str) -> None:
        for waiting in (self._undrawn, self._open):
            obligation = waiting.get(verdict.receipt_index)
            if obligation is not None and obligation.judged_at is None:
                waiting[verdict.receipt_index] = replace(
                    obligation,
                    verdict_index=index,
                    outcome=verdict.outcome,
                    judged_at=time,
                    independent=verdict.independent,
                )
        if verdict.receipt_index in self._open:
            self._settle(self._open.pop(verdict.receipt_index))

    def _settle(self, obligation: Obligation) -> None:
        self._outcomes[obligation.outcome or ""] += 1
        self._independent += obligation.outcome == EXACT and obligation.independent
        if obligation.state("") == LATE:
            self._late.append(obligation)
        if self.keep_judged:
            self._judged.append(obligation)

    def _grow(self, leaf: bytes) -> None:
        if not self._undrawn and not self._leaves:
            self._base.add(self._base.size, leaf)  # a draw over any tree up to here would decide nothing
            return
        self._leaves.append(leaf)
        if not self._undrawn and (frontier := self._frontier_at(self.size)) is not None:
            self._rebase(frontier)

    def _frontier_at(self, size: int) -> Frontier | None:
        if not self._base.size <= size <= self.size:
            return None
        return self._base.frontier().extended(self._leaves[: size - self._base.size])

    def _rebase(self, frontier: Frontier) -> None:
        del self._leaves[: frontier.size - self._base.size]
        self._base = GrowingTree(frontier)

    def _see(self, moment: Moment) -> None:
        """Advance the log's latest time."""
        if not moment.ahead and moment.time > self.latest:
            self.latest = moment.time
            self._date(moment.time)

    def _hear(self, moment: Moment) -> None:
        """Advance the latest time, and that of the auditor's documents."""
        self._see(moment)
        self._auditor_spoke = max(self._auditor_spoke, moment.time)

    def _date(self, time: str) -> None:
        """Let the auditor's time for receipts that were dated ahead begin at `time`, when they exist. Up to here it
        began at the log's latest time before them, so that a log that names no times cannot delay a replay.
        """
        for waiting in (self._undrawn, self._open):
            for index in self._dated_ahead.intersection(waiting):
                policy = next((policy for at, policy in self.policies if at == waiting[index].policy_index), None)
                if policy is not None:
                    waiting[index] = replace(waiting[index], due_by=moved(time, policy.within_seconds))
        self._dated_ahead.clear()

"""A monitor's summary of a log: the newest checkpoint, and the fold of the entries up to an index.

It grows with the open work of auditors, with halts and replaced keys, and not with the log. `MonitorMemory` holds the
state that grows with the log: the receipts' ids and their newest outcomes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ledger.audit.contradiction import Contradiction
from ledger.audit.halt_breach import Breach, HaltWatch
from ledger.audit.log_clock import LogClock
from ledger.audit.log_walk import CheckedEntry, LogWalk, check_entry
from ledger.audit.obligation import Obligation
from ledger.audit.obligation_fold import ObligationFold
from ledger.documents.audit import DEVIATION, INCONSISTENT, Verdict
from ledger.documents.draft_head import DraftHeadPublication
from ledger.documents.halt import HaltState, Resume
from ledger.documents.key_entry import KeyEntry
from ledger.documents.key_history import KeyHistory
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import Document, UnknownDocument
from ledger.errors import FormatError, StoreError
from ledger.keys.envelope import Envelope
from ledger.keys.note import Note
from ledger.keys.trusted_keys import TrustedKeys
from ledger.monitor.memory import MonitorMemory
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.merkle import Frontier

_VERSION = 8


@dataclass(frozen=True, slots=True)
class SeenHead:
    """The newest accepted checkpoint, the time when it was first seen, and the time of a quorum's cosignatures (POSIX
    seconds; None without a quorum).
    """

    note: bytes
    seen_at: float
    vouched_at: float | None = None

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint.from_text(Note.from_bytes(self.note).text)


@dataclass(slots=True)
class Summary:
    """The folded entries. `late`, `breaches` and `contradictions` are counts; the newest of each is kept."""

    walk: LogWalk
    memory: MonitorMemory
    head: SeenHead | None = None
    obligations: ObligationFold = field(default_factory=lambda: ObligationFold(keep_judged=False))
    deviations: dict[int, int] = field(default_factory=dict)
    """The receipt of each DEVIATION verdict that stands: a scope of the receipt has no halt that was resumed."""
    inconsistent: int = 0
    newest_inconsistent: tuple[int, int] | None = None
    """The number of verdicts that outputs are inconsistent with the weights; the entry of the newest one, and its
    receipt's.
    """
    late: int = 0
    newest_late: Obligation | None = None
    breaches: int = 0
    newest_breach: Breach | None = None
    contradictions: int = 0
    newest_contradiction: Contradiction | None = None
    heads_published: dict[str, str] = field(default_factory=dict)
    heads_used: dict[tuple[str, str], int] = field(default_factory=dict)
    """The first entry of each draft head on each base."""
    newest_unknown: tuple[int, str] | None = None
    """The newest entry of an unknown kind, and the kind's name."""
    _rotations: list[tuple[int, Envelope]] = field(default_factory=list)

    @classmethod
    def empty(cls, trusted: TrustedKeys, memory: MonitorMemory) -> Summary:
        return cls(LogWalk(KeyHistory.of(trusted), memory), memory)

    @property
    def size(self) -> int:
        """The number of folded entries."""
        return self.walk.frontier.size

    def take(self, data: bytes) -> None:
        """Check and fold the next entry. Raises CheckFailed."""
        entry = check_entry(data, self.walk.keys)
        document, moment = self.walk.take(entry)
        self.obligations.observe(entry.leaf, entry.envelope, document, moment)
        self._count()
        self._settle(entry, document)

    def _count(self) -> None:
        for late in self.obligations.take_late():
            self.late, self.newest_late = self.late + 1, late
        for breach in self.walk.watch.take_breaches():
            self.breaches, self.newest_breach = self.breaches + 1, breach
        for contradiction in self.walk.contradictions:
            self.contradictions, self.newest_contradiction = self.contradictions + 1, contradiction
        self.walk.contradictions.clear()

    def _settle(self, entry: CheckedEntry, document: Document) -> None:
        match document:
            case Verdict() if document.outcome == DEVIATION:
                if not self._is_lifted(document.receipt_index):  # judged after the halt and the resume of another one
                    self.deviations[entry.index] = document.receipt_index
            case Verdict() if document.outcome == INCONSISTENT or self._misjudged(document):
                self.inconsistent += 1
                self.newest_inconsistent = (entry.index, document.receipt_index)
            case Resume():
                self._resume()
            case DraftHeadPublication():
                self.heads_published.setdefault(document.manifest_cid, document.base_cid)
            case Receipt() if document.spec_decode.head_cid is not None:
                self.heads_used.setdefault((document.spec_decode.head_cid, document.base_cid), entry.index)
            case KeyEntry() if document.replaces is not None:
                self._rotations.append((entry.index, entry.envelope))
            case UnknownDocument():
                self.newest_unknown = (entry.index, document.type)

    def _misjudged(self, verdict: Verdict) -> bool:
        """Whether a verdict is CONSISTENT beyond the announced thresholds."""
        policy = self.obligations.policy
        allowed = None if policy is None else policy.reference
        return allowed is not None and verdict.reference is not None and allowed.exceeded(verdict.reference) is not None

    def _resume(self) -> None:
        """Settle the deviations whose scopes have all been halted since the receipt, and resumed: a deviation in a
        halted scope has no separate halt, and a halt may reach the log after the resume of another scope.
        """
        still = {halt.halt.verdict_index for halt in self.walk.halts.open}
        self.deviations = {
            verdict: receipt
            for verdict, receipt in self.deviations.items()
            if verdict in still or not self._is_lifted(receipt)
        }

    def _is_lifted(self, receipt: int) -> bool:
        return self.walk.watch.lifted(self.memory.served_in(receipt), receipt)

    def to_document(self) -> dict[str, Any]:
        """The summary as JSON, for `MonitorMemory.save`."""
        head, walk = self.head, self.walk
        return {
            "version": _VERSION,
            "head": None if head is None else [head.note.decode("utf-8"), head.seen_at, head.vouched_at],
            "frontier": walk.frontier.to_document(),
            "chain": walk.chain.hex(),
            "rotations": [[index, envelope.to_document()] for index, envelope in self._rotations],
            "halts": walk.halts.to_document(),
            "kinds": dict(walk.kinds),
            "signers": sorted(walk.signers),
            "clock": walk.clock.to_document(),
            "watch": walk.watch.to_document(),
            "obligations": self.obligations.to_document(),
            "deviations": list(self.deviations.items()),
            "inconsistent": [self.inconsistent, self.newest_inconsistent],
            "late": [self.late, None if self.newest_late is None else asdict(self.newest_late)],
            "breaches": [self.breaches, None if self.newest_breach is None else asdict(self.newest_breach)],
            "contradictions": [
                self.contradictions,
                None if self.newest_contradiction is None else asdict(self.newest_contradiction),
            ],
            "heads_published": self.heads_published,
            "heads_used": [[*used, index] for used, index in self.heads_used.items()],
            "newest_unknown": self.newest_unknown,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any], trusted: TrustedKeys, memory: MonitorMemory) -> Summary:
        """Read the output of `to_document` with the present trusted keys. Raises StoreError if it is damaged,
        SignatureError if the keys do not vouch for a replacement that earlier keys vouched for.
        """
        try:
            if document["version"] != _VERSION:
                raise StoreError(
                    f"the monitor's state is of version {document['version']}, expected {_VERSION}; keep it as "
                    "evidence, and name another file with --state: the log is read from its first entry"
                )
            return cls._read(document, trusted, memory)
        except (KeyError, TypeError, ValueError, AttributeError, FormatError) as error:
            raise StoreError(f"the monitor's state is damaged: {error!r}") from error

    @classmethod
    def _read(cls, document: Mapping[str, Any], trusted: TrustedKeys, memory: MonitorMemory) -> Summary:
        rotations = [(index, Envelope.from_document(each, "envelope")) for index, each in document["rotations"]]
        walk = LogWalk(
            keys=_keys(trusted, rotations),
            seen=memory,
            frontier=Frontier.from_document(document["frontier"]),
            chain=bytes.fromhex(document["chain"]),
            halts=HaltState.from_document(document["halts"]),
            clock=LogClock.from_document(document["clock"]),
            watch=HaltWatch.from_document(document["watch"]),
            signers=set(document["signers"]),
        )
        walk.kinds.update(document["kinds"])
        head, unknown = document["head"], document["newest_unknown"]
        (late, newest_late), (breaches, newest_breach) = document["late"], document["breaches"]
        inconsistent, newest = document["inconsistent"]
        contradictions, newest_contradiction = document["contradictions"]
        return cls(
            walk=walk,
            memory=memory,
            head=None if head is None else SeenHead(head[0].encode(), head[1], head[2]),
            obligations=ObligationFold.from_document(document["obligations"]),
            deviations=dict(document["deviations"]),
            inconsistent=inconsistent,
            newest_inconsistent=None if newest is None else (newest[0], newest[1]),
            late=late,
            newest_late=None if newest_late is None else Obligation(**newest_late),
            breaches=breaches,
            newest_breach=None if newest_breach is None else Breach(**newest_breach),
            contradictions=contradictions,
            newest_contradiction=None if newest_contradiction is None else Contradiction(**newest_contradiction),
            heads_published=dict(document["heads_published"]),
            heads_used={(head, base): index for head, base, index in document["heads_used"]},
            newest_unknown=None if unknown is None else (int(unknown[0]), str(unknown[1])),
            _rotations=rotations,
        )


def _keys(trusted: TrustedKeys, rotations: list[tuple[int, Envelope]]) -> KeyHistory:
    keys = KeyHistory.of(trusted)
    for index, envelope in rotations:
        keys = keys.after(index, keys.open(index, envelope))
    return keys

"""The open work of an auditor: a fold of the log's entries, and random spot checks."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, replace
from typing import Any

from ledger.audit.obligation import Obligation
from ledger.audit.obligation_fold import ObligationFold
from ledger.documents.audit import DEVIATION, INCONSISTENT, AuditPolicy, Draw, Drift, Verdict
from ledger.documents.engine_profile import EngineProfile
from ledger.documents.erasure import Erasure, Expiry
from ledger.documents.halt import Halt, Scope
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import Document, open_document, read_document
from ledger.errors import ChainError, LedgerError, SignatureError
from ledger.keys.ed25519 import ROLES
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.entry import Entry
from ledger.tree.merkle import Frontier, leaf_hash
from services.auditor.audit_error import BrokenLog

_log = logging.getLogger(__name__)


_VERSION = 3
"""The version of kept folds; increased when entries are folded differently."""


@dataclass(frozen=True, slots=True)
class Due:
    """A receipt to examine. `why` is the reason why it was selected, which its verdict repeats; None if all are
    examined. `erased` names the entry that erased its content, `due_by` is the promised time of its verdict, if any.
    """

    index: int
    receipt_id: str
    envelope: Envelope
    why: str | None = None
    erased: str | None = None
    due_by: str | None = None


class Backlog:
    """A fold of the log's entries, in order from 0: the receipts to examine and the deviations without a halt.

    Folding the same log again gives the same owed receipts, so an auditor may be killed at any point; only spot checks
    are chosen again. A kept fold (`to_document`) saves reading the entries before. Memory grows with the open work, not
    with the log.
    """

    def __init__(self, trust: TrustedKeys, spot_checks: float = 0.0) -> None:
        """`spot_checks`: the share of receipts, 0 to 1, to examine beyond the owed ones. Raises ValueError."""
        if not 0.0 <= spot_checks <= 1.0:
            raise ValueError(f"expected a share from 0 to 1, got {spot_checks}")
        self._trust = trust
        self._spot_checks = spot_checks
        self._chance = random.SystemRandom()
        self._frontier = Frontier()
        self._obligations = ObligationFold(keep_judged=False)
        self._receipts: dict[int, Due] = {}
        self._picked: set[int] = set()
        self._settled: set[int] = set()  # by verdicts of ours whose entries have not been observed yet
        self._deviations: dict[int, Verdict] = {}
        self._halts: list[tuple[int, Scope]] = []
        self._signers = _signers(trust)
        self.profiles: dict[str, EngineProfile] = {}
        """Profiles of other engines than kolm's in the log, by their identifiers."""
        self.drifts: dict[str, Drift] = {}
        """The sums of drift in the newest verdict, by base and signing key; removed by an INCONSISTENT verdict."""
        self._summed: dict[str, str] = {}  # by profile: its key in `drifts`

    def to_document(self, origin: str) -> dict[str, Any]:
        """The fold as JSON, to go on from at the next start, with the name of the log."""
        return {
            "version": _VERSION,
            "origin": origin,
            "signers": self._signers,
            "spot_checks": self._spot_checks,
            "frontier": self._frontier.to_document(),
            "obligations": self._obligations.to_document(),
            "receipts": [
                [due.index, due.receipt_id, due.envelope.to_document(), due.erased] for due in self._receipts.values()
            ],
            "picked": sorted(self._picked),
            "deviations": [[index, verdict.to_document()] for index, verdict in self._deviations.items()],
            "halts": [[index, scope.to_document()] for index, scope in self._halts],
            "profiles": [[self._summed[name], each.to_document()] for name, each in self.profiles.items()],
            "drifts": {name: drift.to_document() for name, drift in self.drifts.items()},
        }

    @classmethod
    def from_document(cls, document: Any, origin: str, trust: TrustedKeys, spot_checks: float = 0.0) -> Backlog | None:
        """The fold that `to_document` wrote; trusts the document, which is the auditor's own. None if it is of another
        version, log or share of spot checks, or was made under other trusted keys, with which other entries count.
        """
        backlog = cls(trust, spot_checks)
        kept = (document["version"], document["origin"], document["signers"], document["spot_checks"])
        if kept != (_VERSION, origin, backlog._signers, spot_checks):
            return None
        backlog._frontier = Frontier.from_document(document["frontier"])
        backlog._obligations = ObligationFold.from_document(document["obligations"])
        for index, receipt_id, envelope, erased in document["receipts"]:
            backlog._receipts[index] = Due(index, receipt_id, Envelope.from_document(envelope), erased=erased)
        backlog._picked = set(document["picked"])
        backlog._deviations = {index: Verdict.from_document(verdict) for index, verdict in document["deviations"]}
        backlog._halts = [(index, Scope.from_document(scope)) for index, scope in document["halts"]]
        for summed, profile in document["profiles"]:
            backlog._add_profile(EngineProfile.from_document(profile), summed)
        backlog.drifts = {name: Drift.from_document(drift) for name, drift in document["drifts"].items()}
        return backlog

    def drift(self, profile_cid: str) -> Drift | None:
        """The sums that outputs of a profile add to; None if there are none yet."""
        return self.drifts.get(self._summed.get(profile_cid, profile_cid))

    @property
    def position(self) -> int:
        """The index of the entry to observe next."""
        return self._frontier.size

    @property
    def root(self) -> bytes:
        """The root over everything observed, for comparison with a signed checkpoint."""
        return self._frontier.root()

    @property
    def policy(self) -> AuditPolicy | None:
        """The announced policy that is in force."""
        return self._obligations.policy

    def root_at(self, size: int) -> bytes | None:
        """The root over the first `size` entries; None if it is not known (`ObligationFold.root_at`)."""
        return self._obligations.root_at(size)

    def undrawn(self) -> tuple[Obligation, ...]:
        """Receipts without a verdict that wait for a draw."""
        return tuple(
            one for one in self._obligations.undrawn() if one.verdict_index is None and one.index not in self._settled
        )

    def waiting(self) -> tuple[Obligation, ...]:
        """Receipts without a verdict that are owed one, or wait for a draw."""
        owed = self._obligations.owed()
        return (*self.undrawn(), *(one for one in owed if one.index not in self._settled))

    def owed(self) -> tuple[int, ...]:
        """Receipts without a verdict that the announced policy owes one, oldest first."""
        return tuple(sorted(self._obligations.owed_by_index().keys() - self._settled))

    def due(self) -> tuple[int, ...]:
        """The receipts to examine, oldest first: owed ones and spot checks."""
        return tuple(sorted((self._obligations.owed_by_index().keys() | self._picked) - self._settled))

    def receipt(self, index: int) -> Due | None:
        """The receipt at `index`; None if it is not due."""
        owed = self._obligations.owed_by_index().get(index)
        if (owed is None and index not in self._picked) or index in self._settled:
            return None
        return _explained(self._receipts[index], owed, self._spot_checks)

    def halts_on(self, outcome: str) -> bool:
        """Whether a verdict with this outcome halts the methods that drafted."""
        chosen = self.policy is not None and self.policy.halts_inconsistent
        return outcome == DEVIATION or (outcome == INCONSISTENT and chosen)

    def deviations(self) -> tuple[tuple[int, Verdict], ...]:
        """The verdicts that need a halt and are not `answered` yet, with their indexes, oldest first."""
        return tuple(self._deviations.items())

    def needs_halt(self, scope: Scope, receipt_index: int) -> bool:
        """Whether a deviation on a receipt needs a halt of `scope`: not if one was appended after the receipt, even if
        that one has been resumed.
        """
        return not any(index > receipt_index and _covers(halted, scope) for index, halted in self._halts)

    def settle(self, receipt_index: int) -> None:
        """Note that a verdict was appended; its entry will be observed later."""
        self._settled.add(receipt_index)

    def answered(self, verdict_index: int) -> None:
        """Note that a deviation has its halt, or needs none."""
        self._deviations.pop(verdict_index, None)

    def halted(self, index: int, scope: Scope) -> None:
        """Note that a halt was appended; its entry will be observed later."""
        self._halts.append((index, scope))

    def observe(self, data: bytes) -> None:
        """Fold the entry at `position`. Raises BrokenLog if it does not follow from the entry before it."""
        try:
            entry = Entry.from_bytes(data)
            if entry.index != self.position:
                raise ChainError(self.position, f"is numbered {entry.index}")
            document = read_document(entry.envelope)
        except LedgerError as error:
            raise BrokenLog(f"the log is broken at entry {self.position}: {error}") from error
        leaf = leaf_hash(data)
        self._frontier = self._frontier.append(leaf)
        counts = isinstance(document, Receipt) or self._is_trusted(entry, document)
        self._obligations.observe(leaf, entry.envelope, document if counts else None)
        if counts:
            self._fold(entry, document)

    def _fold(self, entry: Entry, document: Document) -> None:
        match document:
            case Receipt():
                self._receipts[entry.index] = Due(entry.index, document.receipt_id, entry.envelope)
                if self._chance.random() < self._spot_checks:
                    self._picked.add(entry.index)
                self._forget_unless_listed(entry.index)
            case Draw():
                for index in [index for index in self._receipts if index < document.tree_size]:
                    self._forget_unless_listed(index)
            case Verdict():
                self._picked.discard(document.receipt_index)
                self._settled.discard(document.receipt_index)
                self._forget_unless_listed(document.receipt_index)
                if self.halts_on(document.outcome):
                    self._deviations[entry.index] = document
                summed = self._summed.get(document.profile_cid, document.profile_cid)
                if document.outcome == INCONSISTENT:
                    self.drifts.pop(summed, None)
                elif document.reference is not None and document.reference.drift is not None:
                    self.drifts[summed] = document.reference.drift
            case Erasure() if document.receipt_index in self._receipts:
                erased = f"the content was erased by entry {entry.index}: {document.reason}"
                self._receipts[document.receipt_index] = replace(self._receipts[document.receipt_index], erased=erased)
            case Expiry():
                self._expire(entry.index, document)
            case EngineProfile():
                self._add_profile(document, f"{document.base_cid} {entry.envelope.signatures[0].key_id}")
            case Halt():
                self._halts.append((entry.index, document.scope))

    def _add_profile(self, profile: EngineProfile, summed: str) -> None:
        name = profile.profile_cid
        self.profiles[name], self._summed[name] = profile, summed

    def _expire(self, index: int, expiry: Expiry) -> None:
        erased = f"the content was erased by entry {index}, by the retention policy of entry {expiry.retention_index}"
        for at, due in self._receipts.items():
            receipt = read_document(due.envelope)
            if isinstance(receipt, Receipt) and expiry.covers(at, receipt.tenant, receipt.issued_at):
                self._receipts[at] = replace(due, erased=erased)

    def _forget_unless_listed(self, index: int) -> None:
        if index not in self._picked and not self._obligations.lists(index):
            self._receipts.pop(index, None)

    def _is_trusted(self, entry: Entry, document: Document) -> bool:
        if not isinstance(document, AuditPolicy | Draw | Verdict | Halt | Erasure | Expiry | EngineProfile):
            return False
        try:
            open_document(entry.envelope, self._trust)
        except SignatureError as error:
            _log.warning("ignoring entry %d, whose key this auditor does not trust: %s", entry.index, error)
            return False
        return True


def _signers(trust: TrustedKeys) -> list[list[str]]:
    """The keys that decide which entries count."""
    return sorted([role, key.key_id] for role in ROLES for key in trust.keys(role))


def _explained(due: Due, owed: Obligation | None, spot_checks: float) -> Due:
    """The receipt with its deadline, and the reason why it was selected."""
    if owed is not None and owed.due_by:
        due = replace(due, due_by=owed.due_by)
    if owed is not None and owed.draw_index is not None:
        return replace(due, why=f"drawn at rate {owed.rate:g} by entry {owed.draw_index}")
    if owed is None and spot_checks < 1.0:
        return replace(due, why=f"a spot check of {spot_checks:g} of all receipts")
    return due


def _covers(halted: Scope, scope: Scope) -> bool:
    return halted.covers(scope.base_cid, scope.method, scope.head_cid)

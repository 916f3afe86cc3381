"""The checks of a bundle's entries that need their order: places, rules, halts, owed replays."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ledger.audit.fulfilment import Fulfilment
from ledger.audit.halt_breach import HaltWatch
from ledger.audit.log_walk import CheckedEntry
from ledger.audit.obligation_fold import ObligationFold
from ledger.bundle.layout import BundleManifest
from ledger.documents.audit import EXACT, NO_ANSWERS, Verdict
from ledger.documents.draft_head import DraftHeadPublication, DraftHeadWithdrawal
from ledger.documents.erasure import Erasure, Expiry, Retention
from ledger.documents.halt import HaltState
from ledger.documents.key_entry import KeyEntry
from ledger.documents.receipt import Receipt
from ledger.documents.reference_rules import follow
from ledger.documents.signed_document import Document, kind_of
from ledger.errors import FormatError
from ledger.tree.merkle import Frontier

CANONICAL, COMPLETE, SIGNED, RULES = 6, 7, 8, 9
"""Numbers of `verification.CHECKS`."""


@dataclass(slots=True)
class BundleFold:
    """The entries of a bundle as far as they have been read, by rising index. Implements reference_rules.References.

    `problems` has the first reason for each check that failed. Documents are judged up to the first problem; places
    and leaves to the end.
    """

    manifest: BundleManifest
    wanted_sizes: frozenset[int] = frozenset()
    promised: tuple[Fulfilment, ...] = ()
    leaves: dict[int, bytes] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    outcomes_by_kind: Counter[str] = field(default_factory=Counter)
    unreplayable: dict[int, int | None] = field(default_factory=dict)
    """Receipts whose newest verdict is no answer, with the entry that had erased their content by then."""
    independent: int = 0
    unproven: int = 0
    overclaims: int = 0
    halts: HaltState = field(default_factory=HaltState)
    watch: HaltWatch = field(default_factory=HaltWatch)
    obligations: ObligationFold = field(default_factory=lambda: ObligationFold(keep_judged=False))
    publications: list[DraftHeadPublication] = field(default_factory=list)
    withdrawals: list[DraftHeadWithdrawal] = field(default_factory=list)
    draft_heads_used: dict[str, str] = field(default_factory=dict)
    roots: dict[int, bytes] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)

    _last: int = -1
    _frontier: Frontier = field(default_factory=Frontier)
    _receipt_ids: dict[int, str] = field(default_factory=dict)
    _known_receipts: set[str] = field(default_factory=set)
    _foreign: set[int] = field(default_factory=set)  # receipts of other engines
    _outcomes: dict[int, str] = field(default_factory=dict)
    _waiting: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Tenant and time of issue of the receipts without an EXACT so far."""
    _erasures: dict[int, int] = field(default_factory=dict)
    _expiries: list[tuple[int, Expiry]] = field(default_factory=list)
    _retentions: list[tuple[int, Retention]] = field(default_factory=list)
    _signers: set[str] = field(default_factory=set)

    @property
    def whole(self) -> bool:
        """Whether the bundle claims to hold the log from its first entry to the last."""
        return (self.manifest.range.start, self.manifest.range.end) == (0, self.manifest.tree_size)

    @property
    def knows_all_halts(self) -> bool:
        """Whether everything before each receipt is here, so that no halt that binds one can have been left out."""
        return max(self._receipt_ids, default=-1) < self._frontier.size

    def receipt_id_at(self, index: int) -> str | None:
        return self._receipt_ids.get(index)

    def foreign_at(self, index: int) -> bool | None:
        return index in self._foreign

    def outcome_at(self, index: int) -> str | None:
        return self._outcomes.get(index)

    def retentions(self) -> list[tuple[int, Retention]]:
        return self._retentions

    def take(self, entry: CheckedEntry) -> None:
        """Fold the next entry. Its place is judged even where its document, or an earlier entry, is wrong."""
        self._blame(CANONICAL, entry.malformed, entry.index)
        self._blame(SIGNED, entry.refused, entry.index)
        if entry.index >= 0:
            self._place(entry)
        if entry.document is not None and not self.problems:
            self._judge(entry, entry.document)

    def _place(self, entry: CheckedEntry) -> None:
        self._blame(CANONICAL, self._place_problem(entry), entry.index)
        self.leaves[entry.index] = entry.leaf
        self._last = entry.index
        if entry.index == self._frontier.size:
            self._frontier = self._frontier.append(entry.leaf)
            if self._frontier.size in self.wanted_sizes:
                self.roots[self._frontier.size] = self._frontier.root()

    def _judge(self, entry: CheckedEntry, document: Document) -> None:
        self._blame(SIGNED, self._key_problem(document), entry.index)
        self._blame(RULES, self._rule_problem(entry.index, document), entry.index)
        if not self.problems:
            self._remember(entry, document)

    def _blame(self, check: int, problem: str | None, index: int) -> None:
        if problem is not None:
            self.problems.setdefault(check, problem if index < 0 else f"entry {index}: {problem}")

    def _place_problem(self, entry: CheckedEntry) -> str | None:
        if entry.index >= self.manifest.tree_size:
            return f"is beyond the checkpoint's {self.manifest.tree_size} entries"
        if entry.index <= self._last:
            return f"comes after entry {self._last}"
        return None

    def _key_problem(self, document: Document) -> str | None:
        if not isinstance(document, KeyEntry) or document.replaces is None:
            return None
        name = document.public_key.key_id
        return f"{name} was in use before the entry that introduces it" if name in self._signers else None

    def _rule_problem(self, index: int, document: Document) -> str | None:
        if isinstance(document, Receipt) and document.receipt_id in self._known_receipts:
            return f"is a second receipt with the id {document.receipt_id}"
        if isinstance(document, Verdict | Erasure) and self._is_elsewhere(document.receipt_index, index):
            return None  # about a receipt that is not in the bundle
        try:
            self.halts = follow(index, document, self.halts, self)
        except FormatError as error:
            return str(error)
        return None

    def _is_elsewhere(self, receipt_index: int, index: int) -> bool:
        """Whether the bundle need not hold the receipt that the document at `index` is about."""
        return receipt_index < index and receipt_index not in self.leaves and not self.whole

    def _remember(self, entry: CheckedEntry, document: Document) -> None:
        self._signers.update(entry.signers)
        self.kinds[kind_of(document)] += 1
        self.watch.observe(entry.index, document)
        if self.whole:
            self.obligations.observe(entry.leaf, entry.envelope, document)
        match document:
            case Receipt():
                self._remember_receipt(entry.index, document)
            case Verdict():
                self._outcomes[entry.index] = document.outcome
                self.unreplayable.pop(document.receipt_index, None)
                if document.outcome in NO_ANSWERS:
                    self.unreplayable[document.receipt_index] = self._erased_by(document.receipt_index)
                if document.outcome == EXACT:
                    self._waiting.pop(document.receipt_index, None)
                # A choice may hold an EXACT for some other receipt; it says nothing about those that are here.
                if document.outcome != EXACT or document.receipt_index in self._receipt_ids:
                    self.outcomes_by_kind[document.outcome] += 1
                    self.independent += document.outcome == EXACT and document.independent
            case Erasure():
                self._erasures[document.receipt_index] = entry.index
            case Expiry():
                self._expiries.append((entry.index, document))
            case Retention():
                self._retentions.append((entry.index, document))
            case DraftHeadPublication():
                self.publications.append(document)
            case DraftHeadWithdrawal():
                self.withdrawals.append(document)

    def _erased_by(self, index: int) -> int | None:
        if index in self._erasures or index not in self._waiting:
            return self._erasures.get(index)
        tenant, issued_at = self._waiting[index]
        return next((at for at, expiry in self._expiries if expiry.covers(index, tenant, issued_at)), None)

    def _remember_receipt(self, index: int, receipt: Receipt) -> None:
        self._waiting[index] = (receipt.tenant, receipt.issued_at)
        self._receipt_ids[index] = receipt.receipt_id
        self._known_receipts.add(receipt.receipt_id)
        if receipt.engine is not None:
            self._foreign.add(index)
        self.unproven += receipt.profile_proven is False
        self.overclaims += receipt.overclaim is not None
        if receipt.spec_decode.head_cid is not None:
            self.draft_heads_used.setdefault(receipt.spec_decode.head_cid, receipt.base_cid)
        for promised in self.promised:
            promised.observe(index, receipt)

    def missing(self) -> str | None:
        """The first entry of the range that is not there, in words."""
        covered = range(self.manifest.range.start, self.manifest.range.end)
        gone = next((index for index in covered if index not in self.leaves), None)
        return None if gone is None else f"entry {gone} of [{covered.start}, {covered.stop}) is missing"

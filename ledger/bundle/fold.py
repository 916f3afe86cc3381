"""The checks of a bundle's entries that need their order: indexes, rules, halts, owed replays."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ledger.audit.contradiction import Contradiction, contradictions
from ledger.audit.fulfilment import Fulfilment
from ledger.audit.halt_breach import HaltWatch
from ledger.audit.log_clock import LogClock
from ledger.audit.log_walk import CheckedEntry
from ledger.audit.obligation_fold import ObligationFold
from ledger.audit.seen import SeenOnDisk
from ledger.bundle.file_checks import CANONICAL, RULES, SIGNED
from ledger.bundle.layout import BundleManifest
from ledger.documents.audit import EXACT, NO_ANSWERS, Verdict
from ledger.documents.erasure import Erasure
from ledger.documents.halt import HaltState
from ledger.documents.key_entry import KeyEntry
from ledger.documents.receipt import Receipt
from ledger.documents.reference_rules import follow
from ledger.documents.signed_document import Document, kind_of
from ledger.errors import FormatError
from ledger.tree.multiproof import GrowingTree
from ledger.tree.tile import TILE_HEIGHT, TILE_WIDTH


class Places:
    """A set of rising indexes, kept as runs without a gap."""

    def __init__(self) -> None:
        self.count = 0
        self._starts, self._ends = array("Q"), array("Q")

    def add(self, index: int) -> None:
        self.count += 1
        if self._ends and self._ends[-1] == index:
            self._ends[-1] += 1
        else:
            self._starts.append(index)
            self._ends.append(index + 1)

    def end_of_run(self, index: int) -> int:
        """The end of the run that contains `index`; `index` itself if there is none."""
        run = bisect_right(self._starts, index) - 1
        return max(self._ends[run], index) if run >= 0 else index

    def __contains__(self, index: int) -> bool:
        return self.end_of_run(index) > index


@dataclass(slots=True)
class BundleFold:
    """The entries of a bundle read so far, by rising index.

    `problems` has the first reason for each check that failed. Documents are checked up to the first problem; indexes
    and leaves to the end. `shown` is the tree that the bundle's entries and its proof make.
    """

    manifest: BundleManifest
    wanted_sizes: frozenset[int] = frozenset()
    promised: tuple[Fulfilment, ...] = ()
    seen: SeenOnDisk = field(default_factory=SeenOnDisk)
    shown: GrowingTree = field(default_factory=GrowingTree)
    places: Places = field(default_factory=Places)
    kinds: Counter[str] = field(default_factory=Counter)
    outcomes_by_kind: Counter[str] = field(default_factory=Counter)
    unreplayable: dict[int, int | None] = field(default_factory=dict)
    """Receipts whose newest verdict is not an answer, with the entry that had erased their content before it."""
    independent: int = 0
    unproven: int = 0
    overclaims: int = 0
    halts: HaltState = field(default_factory=HaltState)
    clock: LogClock = field(default_factory=LogClock)
    watch: HaltWatch = field(default_factory=HaltWatch)
    contradictions: list[Contradiction] = field(default_factory=list)
    obligations: ObligationFold = field(default_factory=lambda: ObligationFold(keep_judged=False))
    draft_heads_used: set[tuple[str, str]] = field(default_factory=set)
    """Each draft head of the receipts with each base that it was used on."""
    rotations: list[int] = field(default_factory=list)
    """The entries that replace a key."""
    roots: dict[int, bytes] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)

    _last: int = -1
    _last_receipt: int = -1
    _signers: set[str] = field(default_factory=set)

    @property
    def whole(self) -> bool:
        """Whether the bundle claims to hold the whole log."""
        return (self.manifest.range.start, self.manifest.range.end) == (0, self.manifest.tree_size)

    @property
    def knows_all_halts(self) -> bool:
        """Whether all entries before each receipt are here, so that no halt for a receipt can have been left out."""
        return self._last_receipt < self.places.end_of_run(0)

    def take_file(self, entries: Sequence[CheckedEntry], subtree: bytes | None = None) -> None:
        """Fold the next entries; `subtree` is their hash, if they are the 256 entries of a complete subtree."""
        first, wide = entries[0].index if entries else 0, subtree is not None
        # Otherwise leaf by leaf: entries before it are missing, or a root within the file is needed.
        wide = wide and self._last < first == self.places.end_of_run(0)
        wide = wide and not any(first < size < first + TILE_WIDTH for size in self.wanted_sizes)
        wide = wide and first + TILE_WIDTH <= self.manifest.tree_size
        for entry in entries:
            self.take(entry, grow=not wide)
        if wide and subtree is not None:
            self.shown.add(first, subtree, TILE_HEIGHT)
            self._note_root(first + TILE_WIDTH)

    def take(self, entry: CheckedEntry, *, grow: bool = True) -> None:
        """Fold the next entry. Its index is checked even if its document, or an earlier entry, is wrong."""
        if entry.document is None:
            self._blame(CANONICAL, entry.malformed, entry.index)
            self._blame(SIGNED, entry.refused, entry.index)
        if entry.index >= 0:
            self._place(entry, grow)
        if entry.document is not None and not self.problems:
            self._judge(entry, entry.document)

    def _place(self, entry: CheckedEntry, grow: bool) -> None:
        problem = self._place_problem(entry.index)
        if problem is not None:
            self._blame(CANONICAL, problem, entry.index)
        else:
            self.places.add(entry.index)
            if grow:
                self.shown.add(entry.index, entry.leaf)
                self._note_root(entry.index + 1)
        self._last = max(self._last, entry.index)

    def _note_root(self, size: int) -> None:
        if size in self.wanted_sizes and self.places.count == size:
            self.roots[size] = self.shown.root()

    def _judge(self, entry: CheckedEntry, document: Document) -> None:
        self._blame(SIGNED, self._key_problem(document), entry.index)
        self._blame(RULES, self._rule_problem(entry.index, document), entry.index)
        if not self.problems:
            self._remember(entry, document)

    def _blame(self, check: int, problem: str | None, index: int) -> None:
        if problem is not None:
            self.problems.setdefault(check, problem if index < 0 else f"entry {index}: {problem}")

    def _place_problem(self, index: int) -> str | None:
        if index >= self.manifest.tree_size:
            return f"is beyond the checkpoint's {self.manifest.tree_size} entries"
        return f"comes after entry {self._last}" if index <= self._last else None

    def _key_problem(self, document: Document) -> str | None:
        if not isinstance(document, KeyEntry) or document.replaces is None:
            return None
        name = document.public_key.key_id
        return f"{name} was in use before the entry that introduces it" if name in self._signers else None

    def _rule_problem(self, index: int, document: Document) -> str | None:
        if isinstance(document, Receipt):
            if self.seen.knows(document.receipt_id):
                return f"is a second receipt with the id {document.receipt_id}"
        elif isinstance(document, Verdict | Erasure) and self._is_elsewhere(document.receipt_index, index):
            return None  # about a receipt that is not in the bundle
        try:
            self.halts = follow(index, document, self.halts, self.seen)
        except FormatError as error:
            return str(error)
        return None

    def _is_elsewhere(self, receipt_index: int, index: int) -> bool:
        """Whether the receipt of the document at `index` may be outside the bundle."""
        return receipt_index < index and receipt_index not in self.places and not self.whole

    def _remember(self, entry: CheckedEntry, document: Document) -> None:
        self._signers.update(entry.signers)
        self.kinds[kind_of(document)] += 1
        moment = self.clock.read(entry.index, document)
        self.watch.observe(entry.index, document, moment)
        self.seen.remember(entry.index, document)
        self.contradictions += contradictions(self.seen, entry.index, document, entry.signers)
        if self.whole:
            self.obligations.observe(entry.leaf, entry.envelope, document, moment)
        match document:
            case Receipt():
                self._remember_receipt(entry.index, document)
            case Verdict():
                self.unreplayable.pop(document.receipt_index, None)
                if document.outcome in NO_ANSWERS:
                    self.unreplayable[document.receipt_index] = self.seen.erased_by(document.receipt_index)
                # A selection may hold an EXACT for a receipt outside; it does not concern the receipts here.
                if document.outcome != EXACT or self.seen.receipt(document.receipt_index) is not None:
                    self.outcomes_by_kind[document.outcome] += 1
                    self.independent += document.outcome == EXACT and document.independent
            case KeyEntry() if document.replaces is not None:
                self.rotations.append(entry.index)

    def _remember_receipt(self, index: int, receipt: Receipt) -> None:
        self._last_receipt = index
        self.unproven += receipt.profile_proven is False
        self.overclaims += receipt.overclaim is not None
        if receipt.spec_decode.head_cid is not None:
            self.draft_heads_used.add((receipt.spec_decode.head_cid, receipt.base_cid))
        for promised in self.promised:
            promised.observe(index, receipt)

    def missing(self) -> str | None:
        """A description of the first missing entry of the range, None if it is complete."""
        start, end = self.manifest.range.start, self.manifest.range.end
        gone = self.places.end_of_run(start)
        return f"entry {gone} of [{start}, {end}) is missing" if gone < end else None

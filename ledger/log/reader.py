"""Reading a ledger while it is written: all entries up to the published tree head, and no unsigned ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from ledger.audit.listing import CompleteRange
from ledger.bundle.export import Export, export_bundle
from ledger.bundle.layout import BundleFile
from ledger.documents.content import Content
from ledger.documents.erasure import Expiry, Retention
from ledger.errors import NotFound
from ledger.log.receipt_filter import ReceiptFilter
from ledger.log.store import EntryStore, ReceiptRow, VerdictRow
from ledger.log.tree_head import TreeHead, TreeHeadBoard
from ledger.tree.merkle import HASH_BYTES, consistency_proof, inclusion_proof, tree_root
from ledger.tree.multiproof import multi_proof, range_proof
from ledger.tree.tile import TileHashes, tile_width

_MOST_VERDICTS = 1000

_PAGE_BYTES = 2**21
"""The most bytes of entries on a page of receipts, so that a page with proof and framing stays below gRPC's 4 MiB. One
entry always fits.
"""


@dataclass(frozen=True, slots=True)
class StoredReceipt:
    """A stored receipt: entry bytes, whether there is a content, and its newest 1,000 verdicts in the order of the log.

    `erased_by` is the index of the entry that erased its content, None if none has.
    """

    index: int
    entry: bytes
    has_content: bool
    verdicts: tuple[VerdictRow, ...]
    erased_by: int | None = None


@dataclass(frozen=True, slots=True)
class ProvenReceipts:
    """A page of receipts, the multi-proof of their leaves under `head`, and, in a complete list, the other entries.

    `more` is true if matches (in a complete list: entries) follow this page.
    """

    head: TreeHead
    rows: tuple[ReceiptRow, ...]
    proof: tuple[bytes, ...]
    more: bool
    complete: CompleteRange | None = None


@dataclass(frozen=True, slots=True)
class Inclusion:
    """The proof that an entry is in the tree of `head`: sibling hashes from the leaf up (RFC 6962 section 2.1.1)."""

    head: TreeHead
    hashes: tuple[bytes, ...]


class LedgerReader:
    """The queries that a service answers from a ledger. Thread-safe; every method may raise StoreError."""

    def __init__(self, store: EntryStore, board: TreeHeadBoard) -> None:
        self._store = store
        self._board = board
        self._hashes = TileHashes(store)

    def head(self) -> TreeHead:
        """The latest checkpoint with its signed note and halt state."""
        return self._board.latest()

    def entry(self, index: int) -> bytes:
        """Raises NotFound."""
        if not 0 <= index < self.head().size:
            raise NotFound(f"the ledger holds no entry {index}")
        return self._store.entry(index)

    def entries(self, start: int, limit: int) -> Sequence[bytes]:
        """At most `limit` entries from `start` on; empty at the end of the log."""
        return self._store.entries(start, max(0, min(limit, self.head().size - start)))

    def entries_of(self, kinds: Iterable[str], start: int = 0) -> Sequence[tuple[int, bytes]]:
        """Index and bytes of all entries of some kinds from `start` on; for rare kinds."""
        size = self.head().size
        return [(index, entry) for index, entry in self._store.entries_of(kinds, start) if index < size]

    def retentions(self) -> Sequence[tuple[int, Retention]]:
        """Index and document of the retention policies, in order."""
        size = self.head().size
        return [(index, policy) for index, policy in self._store.retentions() if index < size]

    def expired(self, expiry: Expiry, limit: int) -> Sequence[int]:
        """The indexes of up to `limit` receipts that an expiry covers and that have content, rising."""
        return self._store.expired(structs.replace(expiry, end_index=min(expiry.end_index, self.head().size)), limit)

    def receipt(self, receipt_id: str) -> StoredReceipt:
        """Raises NotFound."""
        index = self._store.indexes_of_receipts([receipt_id]).get(receipt_id)
        if index is None or index >= self.head().size:
            raise NotFound(f"the ledger holds no receipt {receipt_id}")
        verdicts = self.newest_verdicts(receipt_id, limit=_MOST_VERDICTS)[::-1]
        has_content = self._store.has_content(index)
        erased_by = None if has_content else self._store.erased_by(index)
        return StoredReceipt(index, self._store.entry(index), has_content, tuple(verdicts), erased_by)

    def content(self, index: int) -> Content | None:
        """The content of the receipt at `index`; None if none was given or it was erased. Raises ContentDamaged."""
        return self._store.content(index)

    def receipts(
        self, narrow: ReceiptFilter | None = None, *, after: int = -1, limit: int = 100
    ) -> Sequence[ReceiptRow]:
        """A page of receipts in index order. The next page is `after` the last row's index; an empty one is the end."""
        size = self.head().size
        rows = self._store.receipts(narrow or ReceiptFilter(), after, limit)
        return [row for row in rows if row.index < size]

    def proven_receipts(self, narrow: ReceiptFilter, *, after: int = -1, limit: int = 100) -> ProvenReceipts:
        """At most `limit` receipts after an index, proven under one head; fewer if their entries are large."""
        head = self.head()
        rows = [row for row in self._store.receipts(narrow, after, limit + 1) if row.index < head.size]
        page = rows[: min(limit, _fitting(row.entry for row in rows))]
        proof = multi_proof([row.index for row in page], head.size, self._hashes)
        return ProvenReceipts(head, tuple(page), proof, more=len(page) < len(rows))

    def complete_receipts(self, narrow: ReceiptFilter, *, after: int = -1, limit: int = 100) -> ProvenReceipts:
        """The receipts that match among the next entries (at most `limit`) of the filter's index range, and all other
        entries of it.

        `narrow.outcome` must be None: a receipt does not contain its outcome, so the outcome cannot be proven.
        """
        head = self.head()
        start = min(max(after + 1, narrow.min_index or 0), head.size)
        last = head.size - 1 if narrow.max_index is None else min(narrow.max_index, head.size - 1)
        entries = self._store.entries(start, max(0, min(limit, last + 1 - start)))
        entries = entries[: _fitting(entries)]
        end = start + len(entries)
        rows = self._store.receipts(replace(narrow, max_index=end - 1), start - 1, len(entries)) if entries else ()
        listed = {row.index for row in rows}
        others = tuple(data for index, data in enumerate(entries, start) if index not in listed)
        proof = range_proof(start, end, head.size, self._hashes) if entries else ()
        return ProvenReceipts(head, tuple(rows), proof, end <= last, CompleteRange(start, end, others))

    def verdicts(
        self, receipt_id: str | None = None, *, after: int = -1, limit: int = 100, outcome: str | None = None
    ) -> Sequence[VerdictRow]:
        """A page of verdicts in index order (of a receipt or all, of an outcome or any), paged as in `receipts`."""
        size = self.head().size
        return [row for row in self._store.verdicts(receipt_id, after, limit, outcome) if row.index < size]

    def newest_verdicts(
        self, receipt_id: str | None = None, *, before: int | None = None, limit: int = 100, outcome: str | None = None
    ) -> Sequence[VerdictRow]:
        """Verdicts in falling order from the end of the log, or below entry `before`."""
        size = self.head().size
        end = size if before is None else min(before, size)
        return self._store.verdicts(receipt_id, end, limit, outcome, newest_first=True)

    def indexes_of(self, receipt_ids: Sequence[str]) -> tuple[int, ...]:
        """The indexes of up to 1,000 receipts, in the order of `receipt_ids`. Raises NotFound naming the first missing
        one.
        """
        found, size = self._store.indexes_of_receipts(receipt_ids), self.head().size
        for receipt_id in receipt_ids:
            if found.get(receipt_id, size) >= size:
                raise NotFound(f"the ledger holds no receipt {receipt_id}")
        return tuple(found[receipt_id] for receipt_id in receipt_ids)

    def export(self, wanted: Export) -> Iterator[BundleFile]:
        """The files of a bundle, one at a time. Raises the errors of `export_bundle`."""
        return export_bundle(self._store, wanted)

    def inclusion_proof(self, index: int, size: int | None = None) -> tuple[bytes, ...]:
        """The proof that entry `index` is in the tree of `size` entries (None: the head's). Raises NotFound."""
        published = self.head().size
        size = published if size is None else size
        if not 0 <= index < size <= published:
            raise NotFound(f"the ledger holds no entry {index} in a tree of {size} entries")
        return inclusion_proof(index, size, self._hashes)

    def inclusion(self, index: int) -> Inclusion:
        """The proof of entry `index` under the latest head, and that head. Raises NotFound."""
        head = self.head()
        return Inclusion(head, self.inclusion_proof(index, head.size))

    def root(self, size: int) -> bytes:
        """The root over the first `size` entries. Raises NotFound beyond the head."""
        if not 0 <= size <= self.head().size:
            raise NotFound(f"the ledger holds no tree of {size} entries")
        return tree_root(size, self._hashes)

    def tile(self, level: int, number: int) -> bytes:
        """The hashes that the head's tree has of a tile. Raises NotFound if it has none."""
        width = tile_width(self.head().size, level, number)
        if not width:
            raise NotFound(f"the ledger holds no tile {level}/{number}")
        return self._store.tile(level, number)[: width * HASH_BYTES]

    def consistency_proof(self, old: int, new: int | None = None) -> tuple[bytes, ...]:
        """The proof that the tree of `new` entries (None: the head's) extends the tree of `old` entries. Raises
        NotFound.
        """
        published = self.head().size
        new = published if new is None else new
        if not 0 <= old <= new <= published:
            raise NotFound(f"the ledger holds no trees of {old} and {new} entries")
        return consistency_proof(old, new, self._hashes)


def _fitting(entries: Iterable[bytes]) -> int:
    """The number of entries that fit on a page."""
    total = count = 0
    for data in entries:
        total += len(data)
        if count and total > _PAGE_BYTES:
            break
        count += 1
    return count

"""Reading a ledger that is being written: everything up to the published head, and nothing that is not signed yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledger.content import Content
from ledger.errors import NotFound
from ledger.head import Head, HeadBoard
from ledger.merkle import consistency_proof, inclusion_proof
from ledger.store import EntryStore, ReceiptFilter, ReceiptRow, VerdictRow
from ledger.tile import TileHashes

_MOST_VERDICTS = 1000


@dataclass(frozen=True, slots=True)
class StoredReceipt:
    """A receipt as the ledger holds it: entry bytes, content where not erased, and the verdicts on it so far."""

    index: int
    entry: bytes
    content: Content | None
    verdicts: tuple[VerdictRow, ...]


class LedgerReader:
    """All questions that a service answers from a ledger. Safe between threads; every method may raise StoreError."""

    def __init__(self, store: EntryStore, board: HeadBoard) -> None:
        self._store = store
        self._board = board
        self._hashes = TileHashes(store)

    def head(self) -> Head:
        """The latest checkpoint with its signed note and halt state."""
        return self._board.latest()

    def wait_beyond(self, size: int, timeout: float | None = None) -> Head:
        """The latest head, once the log has more than `size` entries or `timeout` seconds have passed."""
        return self._board.wait_beyond(size, timeout)

    def entry(self, index: int) -> bytes:
        """Raises NotFound."""
        if not 0 <= index < self.head().size:
            raise NotFound(f"the ledger holds no entry {index}")
        return self._store.entry(index)

    def entries(self, start: int, limit: int) -> Sequence[bytes]:
        """Up to `limit` entries from `start` on; empty at the end of the log."""
        return self._store.entries(start, max(0, min(limit, self.head().size - start)))

    def receipt(self, receipt_id: str) -> StoredReceipt:
        """Raises NotFound."""
        index = self._store.indexes_of_receipts([receipt_id]).get(receipt_id)
        if index is None or index >= self.head().size:
            raise NotFound(f"the ledger holds no receipt {receipt_id}")
        verdicts = self.verdicts(receipt_id, limit=_MOST_VERDICTS)
        return StoredReceipt(index, self._store.entry(index), self._store.content(index), tuple(verdicts))

    def receipts(
        self, narrow: ReceiptFilter | None = None, *, after: int = -1, limit: int = 100
    ) -> Sequence[ReceiptRow]:
        """A page of receipts in index order. The next page is `after` the last row's index; an empty one is the end."""
        size = self.head().size
        rows = self._store.receipts(narrow or ReceiptFilter(), after, limit)
        return [row for row in rows if row.index < size]

    def verdicts(self, receipt_id: str | None = None, *, after: int = -1, limit: int = 100) -> Sequence[VerdictRow]:
        """A page of verdicts (of one receipt, or of all) in index order, paged as `receipts` is."""
        size = self.head().size
        return [row for row in self._store.verdicts(receipt_id, after, limit) if row.index < size]

    def inclusion_proof(self, index: int, size: int | None = None) -> tuple[bytes, ...]:
        """The proof that entry `index` is in the tree of `size` entries (the head's where None). Raises NotFound."""
        published = self.head().size
        size = published if size is None else size
        if not 0 <= index < size <= published:
            raise NotFound(f"the ledger holds no entry {index} in a tree of {size} entries")
        return inclusion_proof(index, size, self._hashes)

    def consistency_proof(self, old: int, new: int | None = None) -> tuple[bytes, ...]:
        """The proof that the tree of `new` entries (the head's where None) extends that of `old`. Raises NotFound."""
        published = self.head().size
        new = published if new is None else new
        if not 0 <= old <= new <= published:
            raise NotFound(f"the ledger holds no trees of {old} and {new} entries")
        return consistency_proof(old, new, self._hashes)

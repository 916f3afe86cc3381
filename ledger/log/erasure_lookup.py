"""What has been erased, as the log says it."""

from __future__ import annotations

from ledger.documents.erasure import Erasure
from ledger.documents.signed_document import read_document
from ledger.log.store import EntryStore
from ledger.tree.entry import Entry


def erasure_of(store: EntryStore, receipt_index: int) -> int | None:
    """The index of the erasure of a receipt's content; None where it was not erased.

    Reads all erasures, about 50 µs each: there are few, and nobody asks where content is kept. Raises StoreError,
    FormatError for an entry that is damaged.
    """
    for index, data in store.entries_of(("erasure",)):
        document = read_document(Entry.from_bytes(data).envelope)
        if isinstance(document, Erasure) and document.receipt_index == receipt_index:
            return index
    return None

"""How many bytes of content each tenant has in a ledger, as they are kept: sealed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

from sqlalchemy import ColumnElement, func, select

from ledger.documents.receipt import Receipt
from ledger.log.index_rows import indexable
from ledger.log.store import Record
from ledger.sql.database import Database
from ledger.sql.schema import contents, receipts


class ContentUsage:
    """Counts in the database what was there at the start, once, when first asked; then follows what the writer does.

    One thread writes, any reads. While the database is counted, erasures wait, and nothing else does.
    """

    def __init__(self, database: Database, start: int) -> None:
        """`start`: the number of entries that others have written."""
        self._database = database
        self._start = start
        self._earlier: Counter[str] | None = None
        self._written: Counter[str] = Counter()
        self._counting = Lock()

    def by_tenant(self) -> Mapping[str, int]:
        """Raises StoreError."""
        with self._counting:
            if self._earlier is None:
                self._earlier = self._counted(contents.c.receipt_index < self._start)
            return self._earlier + self._written.copy()

    def written(self, records: Sequence[Record], rows: Sequence[Mapping[str, Any]], erased: Collection[int]) -> None:
        """The rows of `contents` that a batch has added, but those that it has erased as well."""
        tenants = {each.index: each.document.tenant for each in records if isinstance(each.document, Receipt)}
        for row in (each for each in rows if each["receipt_index"] not in erased):
            self._written[indexable(tenants[row["receipt_index"]])] += len(row["sealed"])

    @contextmanager
    def erasing(self, receipt_indexes: Sequence[int]) -> Iterator[None]:
        """Around the transaction that deletes the contents of these receipts. Raises StoreError."""
        if not receipt_indexes:
            yield
            return
        with self._counting:
            erased = contents.c.receipt_index.in_(receipt_indexes)
            earlier = self._counted(erased & (contents.c.receipt_index < self._start))
            written = self._counted(erased & (contents.c.receipt_index >= self._start))
            yield
            if self._earlier is not None:
                self._earlier -= earlier
            self._written -= written

    def _counted(self, where: ColumnElement[bool]) -> Counter[str]:
        joined = select(receipts.c.tenant, func.sum(func.length(contents.c.sealed)))
        joined = joined.join(receipts, receipts.c.index == contents.c.receipt_index).where(where)
        with self._database.reading() as connection:
            found = connection.execute(joined.group_by(receipts.c.tenant)).all()
        return Counter({tenant: int(size) for tenant, size in found})

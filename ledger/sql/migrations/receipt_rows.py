"""The rows of table `receipts`, made anew from the entries: every column follows from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

from ledger.documents.signed_document import read_document
from ledger.errors import ChainError, FormatError
from ledger.log.index_rows import index_rows
from ledger.tree.entry import Entry

_PAGE = 500


def fill(receipts: sa.Table) -> None:
    """Insert a row for each receipt of the log, with the columns that the table has at this step.

    Raises ChainError where an entry is damaged.
    """
    columns = [column.name for column in receipts.columns]
    for page in _pages():
        rows = (_receipt_row(index, entry) for index, entry in page)
        op.bulk_insert(receipts, [{name: row[name] for name in columns} for row in rows])


def _pages() -> Iterator[list[tuple[int, bytes]]]:
    leaves = sa.table("leaves", sa.column("index"), sa.column("kind"), sa.column("entry"))
    after = -1
    while True:
        page = sa.select(leaves.c.index, leaves.c.entry).where(leaves.c.kind == "receipt", leaves.c.index > after)
        found = op.get_bind().execute(page.order_by(leaves.c.index).limit(_PAGE)).all()
        if not found:
            return
        after = found[-1][0]
        yield [(index, entry) for index, entry in found]


def _receipt_row(index: int, entry: bytes) -> dict[str, Any]:
    try:
        return dict(index_rows(index, read_document(Entry.from_bytes(entry).envelope)))["receipts"]
    except FormatError as error:
        raise ChainError(index, f"is damaged: {error}") from error

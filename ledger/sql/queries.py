"""Rows of records, bytes of columns, and the lists of receipts and verdicts in SQL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Connection, Select, Table, bindparam, func, select, union_all

from ledger.documents.erasure import Expiry
from ledger.encoding.text_forms import parse_digest
from ledger.errors import ChainError, StoreError
from ledger.log.receipt_filter import ReceiptFilter
from ledger.log.store import SEGMENT, ReceiptRow, Record, index_rows, indexable, leaf_row
from ledger.sql.database import run
from ledger.sql.schema import contents, leaves, receipts, verdicts
from ledger.tree.entry import chained

_ROWS = 256
"""Rows of one INSERT. Each statement releases the interpreter's lock and has to get it back, so a statement for each
row is slow.
"""

_EQUAL = ("tenant", "method", "base_cid", "head_cid", "adapter_cid", "profile_cid")
_SHOWN = [receipts.c[each.name] for each in fields(ReceiptRow) if each.name in receipts.c]


def entry_bytes(index: int, value: object) -> bytes:
    """The bytes of an entry. Raises ChainError if a flipped bit turned the blob into another type."""
    if not isinstance(value, bytes):
        raise ChainError(index, f"is damaged: the database returns {type(value).__name__}, not bytes")
    return value


def blob(value: object, what: str) -> bytes:
    """The bytes of another column. Raises StoreError for anything else."""
    if not isinstance(value, bytes):
        raise StoreError(f"{what} is damaged: the database returns {type(value).__name__}, not bytes")
    return value


def rows_of(records: Sequence[Record], running: bytes) -> Mapping[str, list[dict[str, Any]]]:
    """The rows of some records by table, leaves first, without their contents; `running` is the running hash before
    them.
    """
    rows: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        running = chained(running, record.leaf)
        rows["leaves"].append(leaf_row(record.index, record.entry, record.envelope_digest, record.document, running))
    for record in records:
        for table, row in index_rows(record.index, record.document):
            rows[table].append(row)
    return rows


def insert_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows that have the same columns in the same order."""
    for at in range(0, len(rows), _ROWS):
        some = rows[at : at + _ROWS]
        columns, values = ", ".join(f'"{name}"' for name in some[0]), f"({marks(some[0])})"
        statement = f"INSERT INTO {table.name} ({columns}) VALUES {', '.join([values] * len(some))}"
        run(connection, statement, *chain.from_iterable(row.values() for row in some))


def marks(values: Collection[Any]) -> str:
    """A "?" for each of these values."""
    return ", ".join("?" * len(values))


def select_receipts(narrow: ReceiptFilter, after: int, limit: int, size: int) -> Select[Any]:
    """The columns of `store.ReceiptRow`, in index order, of a log of `size` entries. Raises FormatError for an
    invalid commitment.
    """
    outcome = _latest_outcome()
    statement = select(*_SHOWN, leaves.c.entry, outcome.label("outcome"))
    statement = statement.join(leaves, leaves.c.index == receipts.c.index).where(receipts.c.index > after)
    for name in _EQUAL:
        value = getattr(narrow, name)
        if value is not None:
            statement = statement.where(receipts.c[name] == indexable(value))
    if narrow.request_id is not None:
        request_id = indexable(narrow.request_id)
        statement = statement.where(_found(("request_id",), request_id, narrow, after, size))
    if narrow.commitment is not None:
        digest = parse_digest(narrow.commitment, "commitment")
        statement = statement.where(_found(("prompt_commitment", "output_commitment"), digest, narrow, after, size))
    if narrow.outcome is not None:  # an index answers which receipts ever had it
        had_it = select(verdicts.c.receipt_index).where(verdicts.c.outcome == narrow.outcome)
        statement = statement.where(receipts.c.index.in_(had_it), outcome == narrow.outcome)
    return _in_range(statement, narrow).order_by(receipts.c.index).limit(limit)


def select_verdicts(
    receipt_id: str | None, outcome: str | None, after: int, limit: int, *, newest_first: bool
) -> Select[Any]:
    """The columns of `store.VerdictRow`, in index order: rising from `after`, or falling below it."""
    index = verdicts.c.index
    statement = select(verdicts, leaves.c.entry).join(leaves, leaves.c.index == index).limit(limit)
    if newest_first:
        statement = statement.where(index < after).order_by(index.desc())
    else:
        statement = statement.where(index > after).order_by(index)
    if receipt_id is not None:
        statement = statement.where(verdicts.c.receipt_id == receipt_id)
    if outcome is not None:
        statement = statement.where(verdicts.c.outcome == outcome)
    return statement


def select_expired(expiry: Expiry, limit: int | None) -> Select[Any]:
    """The indexes of receipts with content that an expiry covers, rising."""
    statement = select(contents.c.receipt_index).join(receipts, receipts.c.index == contents.c.receipt_index)
    statement = statement.where(receipts.c.index < expiry.end_index, receipts.c.issued_at < expiry.issued_before)
    statement = statement.where(func.length(contents.c.sealed) > 0)  # without reading it; emptied rows are erased
    if expiry.tenant is not None:
        statement = statement.where(receipts.c.tenant == indexable(expiry.tenant))
    else:
        statement = statement.where(receipts.c.tenant.not_in([indexable(name) for name in expiry.except_tenants]))
    return statement.order_by(contents.c.receipt_index).limit(limit)


def _found(names: Sequence[str], value: object, narrow: ReceiptFilter, after: int, size: int) -> ColumnElement[bool]:
    """Whether a receipt has the value in one of these columns, by their indexes, segment by segment. These are
    subqueries: combined with other columns, a database would read all receipts of a tenant instead.
    """
    start = max(after + 1, narrow.min_index or 0)
    end = size if narrow.max_index is None else min(size, narrow.max_index + 1)
    segments = [*range(start // SEGMENT, -(-end // SEGMENT))]
    among: BindParameter[int] = bindparam("segments", segments, expanding=True, literal_execute=True, unique=True)
    row = receipts.alias("found").c
    return receipts.c.index.in_(
        union_all(*(select(row.index).where(row.segment.in_(among), row[name] == value) for name in names))
    )


def _latest_outcome() -> Any:
    of_receipt = select(verdicts.c.outcome).where(verdicts.c.receipt_index == receipts.c.index)
    return of_receipt.order_by(verdicts.c.index.desc()).limit(1).scalar_subquery()


def _in_range(statement: Select[Any], narrow: ReceiptFilter) -> Select[Any]:
    if (start := narrow.issued_from) is not None:
        statement = statement.where(receipts.c.issued_at >= start)
    if (end := narrow.issued_before) is not None:
        statement = statement.where(receipts.c.issued_at < end)
    if narrow.min_index is not None:
        statement = statement.where(receipts.c.index >= narrow.min_index)
    if narrow.max_index is not None:
        statement = statement.where(receipts.c.index <= narrow.max_index)
    return statement

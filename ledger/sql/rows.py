"""Records as rows of tables; columns back as bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table

from ledger.errors import ChainError, StoreError
from ledger.log.index_rows import index_rows, leaf_row
from ledger.log.store import Record


def entry_bytes(index: int, value: object) -> bytes:
    """The bytes of an entry. ChainError, which names it, where a flipped bit turned the blob into something else."""
    if not isinstance(value, bytes):
        raise ChainError(index, f"is damaged: the database returns {type(value).__name__}, not bytes")
    return value


def blob(value: object, what: str) -> bytes:
    """The bytes of another column. Raises StoreError where they are none."""
    if not isinstance(value, bytes):
        raise StoreError(f"{what} is damaged: the database returns {type(value).__name__}, not bytes")
    return value


def rows_of(records: Sequence[Record]) -> Mapping[str, list[dict[str, Any]]]:
    """All rows that some records add, but their contents, by table, the leaves first."""
    rows: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        rows["leaves"].append(leaf_row(record.index, record.entry, record.envelope_digest, record.document))
    for record in records:
        for table, row in index_rows(record.index, record.document):
            rows[table].append(row)
    return rows


_ROWS = 64
"""Rows of one INSERT. Each statement gives up the interpreter's lock and has to get it back, so one a row is slow."""


def insert_rows(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """INSERT without SQLAlchemy: no value needs converting, and looking at each costs as much as the insert."""
    names = [column.name for column in table.columns]
    columns, values = ", ".join(f'"{name}"' for name in names), f"({_marks(connection, len(names))})"
    for at in range(0, len(rows), _ROWS):
        some = rows[at : at + _ROWS]
        statement = f"INSERT INTO {table.name} ({columns}) VALUES {', '.join([values] * len(some))}"
        connection.exec_driver_sql(statement, tuple(row[name] for row in some for name in names))


def indexes_by(connection: Connection, table: Table, name: str, values: Sequence[Any]) -> dict[Any, int]:
    """The index of each row whose column `name` holds one of `values`, by that value; without SQLAlchemy, too."""
    if not values:
        return {}
    statement = f'SELECT "{name}", "index" FROM {table.name} WHERE "{name}" IN ({_marks(connection, len(values))})'
    return {row[0]: row[1] for row in connection.exec_driver_sql(statement, tuple(values))}


def _marks(connection: Connection, count: int) -> str:
    return ", ".join(["?" if connection.dialect.name == "sqlite" else "%s"] * count)

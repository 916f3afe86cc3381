"""The guard in SQL: one small table in a separate database."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    LargeBinary,
    MetaData,
    String,
    Table,
    insert,
    select,
)
from sqlalchemy.exc import IntegrityError

from ledger.errors import StoreError, StoreLocked
from ledger.sql.connect import connect_for_reading_with, connect_with
from ledger.sql.database import Database, run
from ledger.sql.versions import version_table
from ledger.tree.checkpoint import Checkpoint

_metadata = MetaData()

_version = version_table("guard_version", _metadata)

_guard = Table(
    "guard",
    _metadata,
    Column("origin", String, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("root", LargeBinary, nullable=False),
)

_FIRST = insert(_guard)
_SWAP = "UPDATE guard SET size = ?, root = ? WHERE origin = ? AND size = ? AND root = ?"


class SqlGuard:
    """`continuity.Guard` on SQLite or PostgreSQL; `open` and `open_for_reading` take a path or URL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, target: Path | str) -> Self:
        """Open for writing; table and file are created if missing. Raises StoreLocked, StoreError."""
        return cls(connect_with(target, "guard", _version))

    @classmethod
    def open_for_reading(cls, target: Path | str) -> Self:
        """Open without the right to write, also while a ledger runs. Raises NotFound, StoreError."""
        return cls(connect_for_reading_with(target, _version, _guard, "is not a guard of a ledger"))

    def read(self, origin: str) -> Checkpoint | None:
        with self._database.reading() as connection:
            row = connection.execute(select(_guard.c.size, _guard.c.root).where(_guard.c.origin == origin)).first()
        return None if row is None else Checkpoint(origin, row.size, row.root)

    def heads(self) -> Sequence[Checkpoint]:
        """The newest head of every log that the guard has seen. Raises StoreError."""
        with self._database.reading() as connection:
            rows = connection.execute(select(_guard).order_by(_guard.c.origin)).all()
        return [Checkpoint(row.origin, row.size, row.root) for row in rows]

    def compare_and_swap(self, old: Checkpoint | None, new: Checkpoint) -> None:
        try:
            with self._database.writing() as connection:
                swapped = _swap(connection, old, new)
        except StoreError as error:
            if isinstance(error.__cause__, IntegrityError):  # another process inserted the first head
                swapped = 0
            else:
                raise
        if not swapped:
            raise StoreLocked(
                f"the guard {self._database.name} holds another head of {new.origin} than expected: another process "
                "writes to this log; run one ledger service for it"
            )

    def check_held(self) -> None:
        self._database.check_held()

    def close(self) -> None:
        self._database.close()


def _swap(connection: Connection, old: Checkpoint | None, new: Checkpoint) -> int:
    """The number of rows that changed: 1, or 0 if the guard does not hold `old`."""
    if old is None:
        return connection.execute(_FIRST, {"origin": new.origin, "size": new.size, "root": new.root}).rowcount
    return int(run(connection, _SWAP, new.size, new.root, old.origin, old.size, old.root).rowcount)

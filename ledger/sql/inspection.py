"""A database row by row, as it stood at one moment, for fsck: beside a running ledger too, damaged rows included."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from sqlalchemy import Connection, func, inspect, select

from ledger.errors import NotFound
from ledger.log.index_rows import Row
from ledger.sql.connect import connect_for_reading
from ledger.sql.database import Database, store_errors
from ledger.sql.rows import blob
from ledger.sql.schema import checkpoints, leaves, metadata, tiles
from ledger.sql.schema_check import differences
from ledger.sql.schema_version import check_revision, is_of_first_release

_PAGE = 256


class SqlInspection:
    """`fsck.Inspection`, in one read transaction from `open` to `close`."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self._database = database
        self._connection = connection

    @classmethod
    def open(cls, target: Path | str) -> Self:
        """Open the database of `SqlEntryStore.open_for_reading`; also a ledger with missing tables.

        Raises NotFound, StoreDamaged where not even the schema can be read, StoreError where it is no ledger.
        """
        database = connect_for_reading(target)
        connection = None
        try:
            with store_errors():
                connection = database.snapshot()
                _check_is_ledger(connection, database.name)
        except Exception:
            if connection is not None:
                connection.close()  # its transaction would keep a writer waiting
            database.close()
            raise
        return cls(database, connection)

    def schema(self) -> Sequence[str]:
        with store_errors():
            return tuple(differences(self._connection))

    def extent(self) -> tuple[int, int]:
        with store_errors():
            statement = select(func.count(), func.max(leaves.c.index)).select_from(leaves)
            count, last = self._connection.execute(statement).one()
        return int(count), 0 if last is None else int(last) + 1

    def newest_checkpoint(self) -> Row | None:
        with store_errors():
            row = self._connection.execute(select(checkpoints).order_by(checkpoints.c.size.desc()).limit(1)).first()
        return None if row is None else dict(row._mapping)

    def tile(self, level: int, number: int) -> bytes:
        statement = select(tiles.c.hashes).where(tiles.c.level == level, tiles.c.number == number)
        with store_errors():
            hashes = self._connection.execute(statement).scalar()
        if hashes is None:
            raise NotFound(f"the ledger holds no tile {level}/{number}")
        return blob(hashes, f"tile {level}/{number}")

    def rows(self, table: str) -> Iterator[Row]:
        chosen = metadata.tables[table]
        statement = select(chosen).order_by(*chosen.primary_key.columns).execution_options(yield_per=_PAGE)
        with store_errors():
            for row in self._connection.execute(statement):
                yield dict(row._mapping)

    def damage(self) -> Sequence[str]:
        if self._connection.dialect.name != "sqlite":
            return ()
        with store_errors():
            lines = self._connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
        return [str(line) for line in lines if line != "ok"]

    def close(self) -> None:
        with store_errors():
            self._connection.close()
        self._database.close()


def _check_is_ledger(connection: Connection, name: str) -> None:
    """Raises StoreError where it is no ledger of this version; a ledger that lost its table of versions passes."""
    there = inspect(connection)
    lost = there.has_table(leaves.name) and not there.has_table("alembic_version")
    if not lost or is_of_first_release(connection):
        check_revision(connection, name)

"""A snapshot of a database, row by row, for fsck: also of a running ledger, and with damaged rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Self

from sqlalchemy import Connection, func, inspect, select

from ledger.documents.content import Content
from ledger.documents.erasure import Expiry
from ledger.errors import FormatError, NotFound
from ledger.log.content_seal import unseal
from ledger.log.store import Row
from ledger.sql.connect import connect_for_reading
from ledger.sql.contents import SqlContentKeys
from ledger.sql.database import Database, store_errors
from ledger.sql.queries import blob, select_expired
from ledger.sql.schema import check_revision, checkpoints, contents, leaves, metadata, missing_objects, tiles, version

_PAGE = 256


class SqlInspection:
    """`fsck.Inspection`, in one read transaction from `open` to `close`."""

    def __init__(self, database: Database, connection: Connection, keys: SqlContentKeys | None) -> None:
        self._database = database
        self._connection = connection
        self._keys = keys

    @classmethod
    def open(cls, target: Path | str, content_keys: Path | str | None = None) -> Self:
        """Open the databases that `SqlEntryStore.open_for_reading` opens, also if tables are missing.

        Raises NotFound, StoreDamaged if the schema cannot be read, StoreError if the database is not a ledger.
        """
        database = connect_for_reading(target)
        connection = keys = None
        try:
            keys = None if content_keys is None else SqlContentKeys.open_for_reading(content_keys)
            with store_errors():
                connection = database.snapshot()
                _check_is_ledger(connection, database.name)
        except Exception:
            if connection is not None:
                connection.close()  # its transaction would keep a writer waiting
            if keys is not None:
                keys.close()
            database.close()
            raise
        return cls(database, connection, keys)

    def schema(self) -> Sequence[str]:
        with store_errors():
            return tuple(missing_objects(self._connection))

    def extent(self) -> tuple[int, int]:
        with store_errors():
            statement = select(func.count(), func.max(leaves.c.index)).select_from(leaves)
            count, last = self._connection.execute(statement).one()
        return int(count), 0 if last is None else int(last) + 1

    def key_entries(self) -> Iterator[tuple[int, object]]:
        statement = select(leaves.c.index, leaves.c.entry).where(leaves.c.kind == "key").order_by(leaves.c.index)
        with store_errors(), closing(self._connection.execute(statement)) as found:
            yield from ((index, entry) for index, entry in found)

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

    def rows(self, table: str, first: int | None = None, last: int | None = None) -> Iterator[Row]:
        key = metadata.tables[table].primary_key.columns
        statement = select(metadata.tables[table]).order_by(*key).execution_options(yield_per=_PAGE)
        if first is not None:
            statement = statement.where(key[0] >= first)
        if last is not None:
            statement = statement.where(key[0] <= last)
        # Closed even if the reader stops early: PostgreSQL keeps a cursor for it.
        with store_errors(), closing(self._connection.execute(statement)) as found:
            for row in found:
                yield dict(row._mapping)

    def content(self, row: Row, receipt_id: str) -> Content | None:
        if self._keys is None:
            return None
        for name in ("key_id", "sealed"):
            if not isinstance(row[name], bytes):
                raise FormatError(name, f"the database returns {type(row[name]).__name__}, not bytes")
        key = self._keys.find(row["key_id"])
        if key is not None:
            return unseal(row["sealed"], receipt_id, key)
        if self._is_there_now(row["receipt_index"]):
            raise FormatError(
                "key_id", "its key is gone: lost, or destroyed by an erasure that this copy does not hold"
            )
        return None

    def expired(self, expiry: Expiry) -> Iterator[int]:
        statement = select_expired(expiry, None).execution_options(yield_per=_PAGE)
        with store_errors(), closing(self._connection.execute(statement)) as found:
            yield from found.scalars()

    def _is_there_now(self, receipt_index: int) -> bool:
        """Whether the content is sealed in the present state: an erasure after the snapshot first empties its row."""
        sealed = contents.c.receipt_index == receipt_index, func.length(contents.c.sealed) > 0
        with self._database.reading() as connection:
            return connection.execute(select(contents.c.receipt_index).where(*sealed)).first() is not None

    def damage(self) -> Sequence[str]:
        if self._connection.dialect.name != "sqlite":
            return ()
        with store_errors():
            lines = self._connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
        return [str(line) for line in lines if line != "ok"]

    def close(self) -> None:
        with store_errors():
            self._connection.close()
        if self._keys is not None:
            self._keys.close()
        self._database.close()


def _check_is_ledger(connection: Connection, name: str) -> None:
    """Raises StoreError if the database is not a ledger of this version; a ledger without its table of versions
    passes.
    """
    there = inspect(connection)
    if there.has_table(version.name) or not there.has_table(leaves.name):
        check_revision(connection, name)

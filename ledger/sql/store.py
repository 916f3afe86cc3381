"""EntryStore on SQLite (SQLAlchemy Core)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Select, func, insert, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import SQLAlchemyError

from ledger.content import Content
from ledger.errors import ChainError, NotFound, StoreError
from ledger.sql import schema
from ledger.sql.lock import WriterLock
from ledger.sql.rows import blob, content_of, entry_bytes, index_rows, leaf_row
from ledger.sql.schema import checkpoints, contents, leaves, receipts, tiles, verdicts
from ledger.sql.sqlite import reading_engine, writing_engine
from ledger.store import Batch, ReceiptFilter, ReceiptRow, VerdictRow


class SqliteEntryStore:
    """A ledger in one SQLite file, under the contract of `store.EntryStore`. Made by `open` or `open_for_reading`."""

    def __init__(self, reader: Engine, writer: Engine | None, lock: WriterLock | None) -> None:
        self._reader = reader
        self._writer = writer
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> SqliteEntryStore:
        """Open for writing; the file and its tables are created where missing.

        Raises StoreLocked where another process writes to this ledger, StoreError for a database of another schema. A
        crash while creating leaves no tables: they are made in one transaction.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot create {path.parent}: {error.strerror}") from None
        lock = WriterLock(path)
        writer = writing_engine(path)
        try:
            with _store_errors(), writer.begin() as connection:
                _create_schema(connection, path)
        except StoreError:
            writer.dispose()
            lock.release()
            raise
        return cls(reading_engine(path), writer, lock)

    @classmethod
    def open_for_reading(cls, path: Path) -> SqliteEntryStore:
        """Open without the right to write, beside a running writer too. Raises NotFound where there is no such file."""
        if not path.is_file():
            raise NotFound(f"there is no ledger at {path}")
        store = cls(reading_engine(path), None, None)
        try:
            with store._reading() as connection:
                _check_version(connection, path)
        except StoreError:
            store.close()
            raise
        return store

    def size(self) -> int:
        with self._reading() as connection:
            count, last = connection.execute(select(func.count(), func.max(leaves.c.index)).select_from(leaves)).one()
        if count and last != count - 1:
            raise ChainError(int(last), f"is the last of {count} entries, so {last + 1 - count} before it are missing")
        return int(count)

    def commit(self, batch: Batch) -> None:
        with self._writing() as connection:
            _check_next(connection, batch)
            connection.execute(insert(leaves), [leaf_row(record) for record in batch.records])
            for table, rows in index_rows(batch.records):
                connection.execute(insert(table), rows)
            upsert = sqlite.insert(tiles)
            upsert = upsert.on_conflict_do_update(
                index_elements=["level", "number"], set_={"hashes": upsert.excluded.hashes}
            )
            connection.execute(
                upsert, [{"level": tile.level, "number": tile.number, "hashes": tile.hashes} for tile in batch.tiles]
            )

    def record_checkpoint(self, size: int, note: bytes) -> None:
        with self._writing() as connection:
            known = connection.execute(select(checkpoints.c.note).where(checkpoints.c.size == size)).scalar()
            if known is None:
                connection.execute(insert(checkpoints), {"size": size, "note": note})
            elif known != note:
                raise StoreError(f"another checkpoint of size {size} is recorded already")

    def latest_checkpoint(self) -> bytes | None:
        note = self._scalar(select(checkpoints.c.note).order_by(checkpoints.c.size.desc()).limit(1))
        return None if note is None else blob(note, "the latest checkpoint")

    def entry(self, index: int) -> bytes:
        data = self._scalar(select(leaves.c.entry).where(leaves.c.index == index))
        if data is None:
            raise NotFound(f"the ledger holds no entry {index}")
        return entry_bytes(index, data)

    def entries(self, start: int, limit: int) -> Sequence[bytes]:
        statement = select(leaves.c.index, leaves.c.entry).where(leaves.c.index >= start)
        rows = self._all(statement.order_by(leaves.c.index).limit(limit))
        return [entry_bytes(index, entry) for index, entry in rows]

    def entries_of(self, kinds: Iterable[str]) -> Sequence[tuple[int, bytes]]:
        statement = select(leaves.c.index, leaves.c.entry).where(leaves.c.kind.in_(tuple(kinds)))
        return [(index, entry_bytes(index, entry)) for index, entry in self._all(statement.order_by(leaves.c.index))]

    def tile(self, level: int, number: int) -> bytes:
        hashes = self._scalar(select(tiles.c.hashes).where(tiles.c.level == level, tiles.c.number == number))
        if hashes is None:
            raise NotFound(f"the ledger holds no tile {level}/{number}")
        return blob(hashes, f"tile {level}/{number}")

    def indexes_of_envelopes(self, digests: Sequence[bytes]) -> Mapping[bytes, int]:
        column = leaves.c.envelope_digest
        return dict(self._all(select(column, leaves.c.index).where(column.in_(digests))))

    def indexes_of_receipts(self, receipt_ids: Sequence[str]) -> Mapping[str, int]:
        column = receipts.c.receipt_id
        return dict(self._all(select(column, receipts.c.index).where(column.in_(receipt_ids))))

    def receipt_id_at(self, index: int) -> str | None:
        found: str | None = self._scalar(select(receipts.c.receipt_id).where(receipts.c.index == index))
        return found

    def outcome_at(self, index: int) -> str | None:
        found: str | None = self._scalar(select(verdicts.c.outcome).where(verdicts.c.index == index))
        return found

    def content(self, receipt_index: int) -> Content | None:
        rows = self._all(select(contents).where(contents.c.receipt_index == receipt_index))
        return content_of(rows[0]) if rows else None

    def receipts(self, narrow: ReceiptFilter, after: int, limit: int) -> Sequence[ReceiptRow]:
        latest_outcome = (
            select(verdicts.c.outcome)
            .where(verdicts.c.receipt_index == receipts.c.index)
            .order_by(verdicts.c.index.desc())
            .limit(1)
            .scalar_subquery()
        )
        statement = select(receipts, leaves.c.entry, latest_outcome.label("outcome"))
        statement = statement.join(leaves, leaves.c.index == receipts.c.index).where(receipts.c.index > after)
        statement = _narrowed(statement, narrow).order_by(receipts.c.index).limit(limit)
        return [ReceiptRow(**row._mapping) for row in self._all(statement)]

    def verdicts(self, receipt_id: str | None, after: int, limit: int) -> Sequence[VerdictRow]:
        statement = select(verdicts, leaves.c.entry).join(leaves, leaves.c.index == verdicts.c.index)
        statement = statement.where(verdicts.c.index > after).order_by(verdicts.c.index).limit(limit)
        if receipt_id is not None:
            statement = statement.where(verdicts.c.receipt_id == receipt_id)
        return [VerdictRow(**row._mapping) for row in self._all(statement)]

    def close(self) -> None:
        for engine in (self._reader, self._writer):
            if engine is not None:
                engine.dispose()
        if self._lock is not None:
            self._lock.release()

    def _scalar(self, statement: Select[Any]) -> Any:
        with self._reading() as connection:
            return connection.execute(statement).scalar()

    def _all(self, statement: Select[Any]) -> Sequence[Any]:
        with self._reading() as connection:
            return connection.execute(statement).all()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with _store_errors(), self._reader.begin() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        if self._writer is None:
            raise StoreError("this ledger was opened for reading")
        with _store_errors(), self._writer.begin() as connection:
            yield connection


@contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except (SQLAlchemyError, OverflowError) as error:  # OverflowError: an index beyond 64 bits
        cause = getattr(error, "orig", None) or error
        raise StoreError(f"the database failed: {cause}") from error


def _create_schema(connection: Connection, path: Path) -> None:
    if connection.exec_driver_sql("PRAGMA user_version").scalar() == 0:
        schema.metadata.create_all(connection)
        for trigger in schema.SQLITE_TRIGGERS:
            connection.exec_driver_sql(trigger)
        connection.exec_driver_sql(f"PRAGMA user_version={schema.SCHEMA_VERSION}")
    _check_version(connection, path)


def _check_version(connection: Connection, path: Path) -> None:
    version = connection.exec_driver_sql("PRAGMA user_version").scalar()
    if version != schema.SCHEMA_VERSION:
        raise StoreError(f"{path} is no ledger of schema {schema.SCHEMA_VERSION} (it says {version})")


def _check_next(connection: Connection, batch: Batch) -> None:
    last = connection.execute(select(func.max(leaves.c.index))).scalar()
    expected = 0 if last is None else last + 1
    indexes = [record.index for record in batch.records]
    if indexes != list(range(expected, expected + len(indexes))):
        # Somebody else has written: the lock file was removed or lies on a file system without locks.
        raise StoreError(f"expected a batch from index {expected} on, got {indexes[:1]}")


def _narrowed(statement: Select[Any], narrow: ReceiptFilter) -> Select[Any]:
    for column, value in (
        (receipts.c.tenant, narrow.tenant),
        (receipts.c.method, narrow.method),
        (receipts.c.base_cid, narrow.base_cid),
        (receipts.c.request_id, narrow.request_id),
    ):
        if value is not None:
            statement = statement.where(column == value)
    if narrow.min_index is not None:
        statement = statement.where(receipts.c.index >= narrow.min_index)
    if narrow.max_index is not None:
        statement = statement.where(receipts.c.index <= narrow.max_index)
    return statement

"""`content_seal.ContentKeys` on SQL: two small tables, in a database of their own that no backup has to hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from sqlalchemy import BigInteger, Column, LargeBinary, MetaData, Table, delete, insert, select

from ledger.log.content_seal import ContentKey
from ledger.sql.connect import connect_for_reading_with, connect_with
from ledger.sql.database import Database

_metadata = MetaData()

_keys = Table(
    "content_keys",
    _metadata,
    Column("key_id", LargeBinary, primary_key=True),
    Column("key", LargeBinary, nullable=False),
)

_condemned = Table(
    "condemned_content_keys",
    _metadata,
    Column("key_id", LargeBinary, primary_key=True),
    Column("receipt_index", BigInteger, nullable=False),
)

_FIND = select(_keys.c.key_id, _keys.c.key)

_RESERVE = 256
"""Keys made in one transaction, so that few batches of entries wait for it. Those left at the end are never used."""


class SqlContentKeys:
    """Made by `open` or `open_for_reading`, from a path or URL as `SqlEntryStore` is."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reserve: list[ContentKey] = []

    @classmethod
    def open(cls, target: Path | str) -> Self:
        """Open for writing; tables and file are created where missing. Raises StoreLocked, StoreError."""
        return cls(connect_with(target, "content-keys", _metadata))

    @classmethod
    def open_for_reading(cls, target: Path | str) -> Self:
        """Open without the right to write, beside a running ledger too. Raises NotFound, StoreError."""
        return cls(connect_for_reading_with(target, _keys, "holds no content keys of a ledger"))

    def take(self, count: int) -> Sequence[ContentKey]:
        if count > len(self._reserve):
            made = [ContentKey.generate() for _ in range(max(count, _RESERVE))]
            with self._database.writing() as connection:
                connection.execute(insert(_keys), [{"key_id": each.key_id, "key": each.key} for each in made])
            self._reserve += made
        taken, self._reserve = self._reserve[:count], self._reserve[count:]
        return taken

    def find(self, key_id: bytes) -> ContentKey | None:
        with self._database.reading() as connection:
            row = connection.execute(_FIND.where(_keys.c.key_id == key_id)).first()
        return None if row is None else ContentKey(row.key_id, row.key)

    def condemn(self, receipts: Mapping[bytes, int]) -> None:
        rows = [{"key_id": key_id, "receipt_index": index} for key_id, index in receipts.items()]
        if rows:
            with self._database.writing() as connection:
                connection.execute(delete(_condemned).where(_condemned.c.key_id.in_(receipts)))
                connection.execute(insert(_condemned), rows)

    def condemned(self) -> Mapping[bytes, int]:
        with self._database.reading() as connection:
            return {row.key_id: row.receipt_index for row in connection.execute(select(_condemned))}

    def settle(self, destroyed: Sequence[bytes]) -> None:
        """The bytes of the keys are overwritten too, as far as the database can."""
        with self._database.writing() as connection:
            connection.execute(delete(_keys).where(_keys.c.key_id.in_(destroyed)))
        if destroyed:
            self._database.scrub(_keys.name)
        with self._database.writing() as connection:  # last: a crash before this destroys and scrubs once more
            connection.execute(delete(_condemned))

    def is_empty(self) -> bool:
        with self._database.reading() as connection:
            return connection.execute(_FIND.limit(1)).first() is None

    def close(self) -> None:
        self._database.close()

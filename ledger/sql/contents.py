"""Contents in SQL: the table `contents`, and the keys that open its rows, in a database that backups leave out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Column, Connection, LargeBinary, MetaData, Table, func, select

from ledger.documents.content import Content
from ledger.documents.receipt import Receipt
from ledger.errors import ContentDamaged, FormatError, StoreError
from ledger.log.content_seal import ContentKey, ContentKeys, seal, unseal
from ledger.log.store import Record
from ledger.sql.connect import connect_for_reading_with, connect_with
from ledger.sql.database import Database, run
from ledger.sql.queries import blob, insert_rows, marks
from ledger.sql.schema import contents, erasures, receipts
from ledger.sql.versions import version_table

_metadata = MetaData()

_version = version_table("content_keys_version", _metadata)

_keys = Table(
    "content_keys",
    _metadata,
    Column("key_id", LargeBinary, primary_key=True),
    Column("key", LargeBinary, nullable=False),
)

_FIND = select(_keys.c.key_id, _keys.c.key)
_DESTROY = "DELETE FROM content_keys WHERE key_id IN ({})"
_KEYS_OF = "SELECT key_id FROM contents WHERE receipt_index IN ({})"
_EMPTY = "UPDATE contents SET sealed = ? WHERE receipt_index IN ({})"
_FORGET = "DELETE FROM contents WHERE receipt_index IN ({})"
_EMPTIED = select(contents.c.key_id, contents.c.receipt_index).where(
    contents.c.receipt_index.in_(select(erasures.c.receipt_index)), func.length(contents.c.sealed) == 0
)
"""The emptied contents among the few erased ones: a search among all contents would read every row."""

_SCRUB_SECONDS, _KEY_SCRUB_SECONDS = 0.1, 10.0
"""The longest waits for readers of contents, during which the log waits too, and for readers of keys."""
_RESERVE = 1024
"""Keys made in one transaction. When half of them are taken, a thread makes the next ones; unused keys are abandoned at
the end of the process.
"""


class SqlContentKeys:
    """`content_seal.ContentKeys` on SQLite or PostgreSQL; `open` and `open_for_reading` take a path or URL."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reserve: list[ContentKey] = []
        self._maker = ThreadPoolExecutor(1, "content-keys")
        self._making: Future[list[ContentKey]] | None = None

    @classmethod
    def open(cls, target: Path | str) -> Self:
        """Open for writing; tables and file are created if missing. Raises StoreLocked, StoreError."""
        return cls(connect_with(target, "content-keys", _version))

    @classmethod
    def open_for_reading(cls, target: Path | str) -> Self:
        """Open without the right to write, also while a ledger runs. Raises NotFound, StoreError."""
        return cls(connect_for_reading_with(target, _version, _keys, "holds no content keys of a ledger"))

    def take(self, count: int) -> Sequence[ContentKey]:
        making = self._making
        if making is not None and (making.done() or count > len(self._reserve)):
            self._making = None
            self._reserve += making.result()
        if count > len(self._reserve):
            self._reserve += self._made(max(count, _RESERVE))
        taken, self._reserve = self._reserve[:count], self._reserve[count:]
        if self._making is None and len(self._reserve) < _RESERVE // 2:
            self._making = self._maker.submit(self._made, _RESERVE)
        return taken

    def _made(self, count: int) -> list[ContentKey]:
        made = ContentKey.generate(count)
        with self._database.writing() as connection:
            insert_rows(connection, _keys, [{"key_id": each.key_id, "key": each.key} for each in made])
        return made

    def find(self, key_id: bytes) -> ContentKey | None:
        with self._database.reading() as connection:
            row = connection.execute(_FIND.where(_keys.c.key_id == key_id)).first()
        return None if row is None else ContentKey(row.key_id, row.key)

    def destroy(self, key_ids: Sequence[bytes]) -> None:
        """Delete keys, and overwrite their bytes if the database can. Raises StoreError if a reader keeps them."""
        if key_ids:
            with self._database.writing() as connection:
                run(connection, _DESTROY.format(marks(key_ids)), *key_ids)
            if not self._database.scrub(_keys.name, _KEY_SCRUB_SECONDS):
                raise StoreError(
                    f"a reader of {self._database.name} keeps the bytes of erased keys: end its transaction"
                )

    def check_held(self) -> None:
        self._database.check_held()

    def is_empty(self) -> bool:
        with self._database.reading() as connection:
            return connection.execute(_FIND.limit(1)).first() is None

    def close(self) -> None:
        self._maker.shutdown()
        self._database.close()


class SealedContents:
    """Seals and unseals contents, and destroys the keys of erased ones.

    The transaction of an erasure empties the row of a content. Its key is destroyed after the transaction, so that an
    erasure that fails costs no content, in a thread while the guard and the checkpoint are written, and before callers
    get their answer. Until then the emptied row names the key: after a crash between the two, `settle` destroys the key
    at the next start or before the next write.
    """

    def __init__(self, database: Database, keys: ContentKeys | None) -> None:
        """Without `keys`, contents cannot be written, read or erased."""
        self._database = database
        self._keys = keys
        self._unsettled = keys is not None
        self._threads = ThreadPoolExecutor(2, "content-erasure")
        self._destroying: tuple[Sequence[Future[Any]], Sequence[int]] | None = None
        self._emptied: list[int] = []

    def rows(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """The rows of `contents` for some records. Raises StoreError."""
        given = [
            (record.index, record.document.receipt_id, record.content)
            for record in records
            if record.content is not None and isinstance(record.document, Receipt)
        ]
        if not given:
            return []
        return [
            {"receipt_index": index, "key_id": key.key_id, "sealed": seal(content, receipt_id, key)}
            for (index, receipt_id, content), key in zip(given, self._required().take(len(given)), strict=True)
        ]

    @contextmanager
    def erasing(self, receipt_indexes: Sequence[int]) -> Iterator[None]:
        """Enclose the transaction that empties the rows of these receipts. Their keys are destroyed when `destroyed`
        returns. Raises StoreError.
        """
        if not receipt_indexes:
            yield
            return
        self._required()
        self.settle()
        statement = _KEYS_OF.format(marks(receipt_indexes))
        key_ids = [key_id for (key_id,) in self._database.rows(statement, *receipt_indexes)]
        self._unsettled = True
        yield
        self._destroy(key_ids, receipt_indexes)

    def empty(self, connection: Connection, receipt_indexes: Sequence[int]) -> None:
        """Empty the rows of contents, in the transaction of their erasure."""
        run(connection, _EMPTY.format(marks(receipt_indexes)), b"", *receipt_indexes)

    def forget(self, connection: Connection) -> None:
        """Delete the emptied rows whose keys are destroyed, in any later transaction."""
        if self._emptied:
            run(connection, _FORGET.format(marks(self._emptied)), *self._emptied)
            self._emptied = []

    def settle(self) -> None:
        """Destroy the keys of erasures that were written. Raises StoreError."""
        self.destroyed()
        if self._keys is None or not self._unsettled:
            return
        with self._database.reading() as connection:
            found = connection.execute(_EMPTIED).all()
        if found:
            self._destroy([row.key_id for row in found], [row.receipt_index for row in found])
            self.destroyed()
        self._unsettled = False

    def destroyed(self) -> None:
        """Wait until the keys of an erasure are destroyed. Raises StoreError if that failed."""
        if self._destroying is not None:
            (done, receipt_indexes), self._destroying = self._destroying, None
            for each in done:
                each.result()
            self._emptied += receipt_indexes
            self._unsettled = False

    def _destroy(self, key_ids: Sequence[bytes], receipt_indexes: Sequence[int]) -> None:
        destroyed = self._threads.submit(self._required().destroy, key_ids)
        # Sealed bytes that a reader keeps a while longer, as a backup does, are of no use without the key.
        scrubbed = self._threads.submit(self._database.scrub, contents.name, _SCRUB_SECONDS)
        self._destroying = (destroyed, scrubbed), receipt_indexes

    def content(self, receipt_index: int) -> Content | None:
        """The content of a receipt; None if it is missing or its key is destroyed. Raises ContentDamaged."""
        statement = select(contents.c.key_id, contents.c.sealed, receipts.c.receipt_id)
        joined = statement.join(receipts, receipts.c.index == contents.c.receipt_index)
        with self._database.reading() as connection:
            row = connection.execute(joined.where(contents.c.receipt_index == receipt_index)).first()
        if row is None or row.sealed == b"" or (key := self._required().find(row.key_id)) is None:
            return None
        try:
            return unseal(blob(row.sealed, "its column"), row.receipt_id, key)
        except (FormatError, StoreError) as error:
            raise ContentDamaged(f"the content of receipt {row.receipt_id} is damaged: {error}") from error

    def has(self, receipt_index: int) -> bool:
        """Whether a content is sealed here, and its key is not known to be destroyed."""
        sealed = contents.c.receipt_index == receipt_index, func.length(contents.c.sealed) > 0
        with self._database.reading() as connection:
            key_id = connection.execute(select(contents.c.key_id).where(*sealed)).scalar()
        if key_id is None:
            return False
        with suppress(StoreError):  # the keys are out of reach for now
            return self._required().find(key_id) is not None
        return True

    def check_held(self) -> None:
        """`store.EntryStore.check_held`, of the keys."""
        if self._keys is not None:
            self._keys.check_held()

    def check_keys(self) -> None:
        """Raises StoreError if contents are sealed and the database of keys is empty: the keys were lost, or are
        elsewhere.
        """
        if self._keys is None or not self._keys.is_empty():
            return
        with self._database.reading() as connection:
            statement = select(contents.c.receipt_index).where(func.length(contents.c.sealed) > 0)
            sealed = connection.execute(statement.limit(1)).first()
        if sealed is not None:
            raise StoreError(
                "the ledger holds sealed contents, and its database of content keys is empty: lost, or another "
                "one. Bring it back. If it is lost for good, earlier contents can never be read again: start once "
                "with --new-content-keys"
            )

    def close(self) -> None:
        self._threads.shutdown()
        if self._keys is not None:
            self._keys.close()

    def _required(self) -> ContentKeys:
        if self._keys is None:
            raise StoreError("this ledger was opened without its content keys: contents are out of reach")
        return self._keys

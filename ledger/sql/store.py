"""EntryStore on SQL (SQLAlchemy Core), on any `database.Database`: log, index and contents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, Select, Table, func, select, update

from ledger.documents.audit import ACCUSATIONS
from ledger.documents.content import Content
from ledger.documents.erasure import Erasure, Expiry, Retention
from ledger.documents.receipt import Receipt
from ledger.documents.reference_rules import JudgedOutput
from ledger.documents.signed_document import read_document
from ledger.errors import ChainError, LedgerError, NotFound, StoreError, StoreLocked
from ledger.log.receipt_filter import ReceiptFilter
from ledger.log.store import Batch, ReceiptRow, VerdictRow, retentions_of
from ledger.sql.connect import connect, connect_for_reading
from ledger.sql.contents import SealedContents, SqlContentKeys
from ledger.sql.database import Database, run
from ledger.sql.queries import (
    blob,
    entry_bytes,
    insert_rows,
    marks,
    rows_of,
    select_expired,
    select_receipts,
    select_verdicts,
)
from ledger.sql.schema import (
    check_revision,
    contents,
    fence,
    leaves,
    make_tables,
    metadata,
    receipts,
)
from ledger.tree.entry import CHAIN_START, Entry, signed_by

_LAST = 'SELECT "index", chain FROM leaves ORDER BY "index" DESC LIMIT 1'
_ENTRY = 'SELECT entry FROM leaves WHERE "index" = ?'
_ENTRIES = 'SELECT "index", entry FROM leaves WHERE "index" >= ? ORDER BY "index" LIMIT ?'
_INDEXES = 'SELECT "{1}", "index" FROM {0} WHERE {2} AND "{1}" IN ({3})'

_ABOUT = (
    'SELECT "index" FROM verdicts WHERE receipt_index >= ? AND receipt_index < ? UNION ALL '
    'SELECT erasure_index FROM erasures JOIN leaves ON "index" = erasure_index '
    "WHERE kind = 'erasure' AND receipt_index >= ? AND receipt_index < ?"
)
_HAS_SIGNED = {
    "sqlite": "SELECT 1 FROM leaves WHERE instr(entry, ?) > 0 LIMIT 1",
    "postgresql": "SELECT 1 FROM leaves WHERE position(? IN entry) > 0 LIMIT 1",
}

_TILE = "SELECT hashes FROM tiles WHERE level = ? AND number = ?"
_PUT_TILE = (
    "INSERT INTO tiles (level, number, hashes) VALUES (?, ?, ?) "
    "ON CONFLICT (level, number) DO UPDATE SET hashes = excluded.hashes"
)

_ERASED_BY = "SELECT erasure_index FROM erasures WHERE receipt_index = ?"
_PUT_ERASURE = "INSERT INTO erasures (receipt_index, erasure_index) VALUES (?, ?) ON CONFLICT DO NOTHING"
"""The first one stays: a restored backup may have content that was erased."""

_RECEIPT_ID = 'SELECT receipt_id FROM receipts WHERE "index" = ?'
_OUTCOME = 'SELECT outcome FROM verdicts WHERE "index" = ?'

_LATEST_CHECKPOINT = "SELECT note FROM checkpoints ORDER BY size DESC LIMIT 1"
_CHECKPOINT = "SELECT note FROM checkpoints WHERE size = ?"
_PUT_CHECKPOINT = "INSERT INTO checkpoints (size, note) VALUES (?, ?)"

_EPOCH = {"sqlite": "SELECT epoch FROM fence", "postgresql": "SELECT epoch FROM fence FOR UPDATE"}


class Fence:
    """The epoch of one writer. A lock can be lost unnoticed (a broken connection, a file system without locks). The
    epoch is checked inside the transaction that writes, so a stale writer can never write.
    """

    def __init__(self, connection: Connection) -> None:
        """Begin a new epoch in the connection's transaction, whose commit locks out all earlier writers."""
        connection.execute(update(fence).values(epoch=fence.c.epoch + 1))
        self.epoch = int(connection.execute(select(fence.c.epoch)).scalar_one())

    def touch(self, connection: Connection) -> None:
        """Write the epoch again: it changes nothing, and a database without room refuses it as it would refuse an
        entry.
        """
        connection.execute(update(fence).values(epoch=self.epoch))

    def check(self, connection: Connection) -> None:
        """Raises StoreLocked if a later epoch has begun; otherwise none can begin before this transaction ends."""
        (epoch,) = run(connection, _EPOCH[connection.dialect.name]).fetchone()
        if epoch != self.epoch:
            raise StoreLocked(
                f"another process has taken this ledger over (epoch {epoch}, this process has {self.epoch}); "
                "run one ledger service for a database"
            )


class SqlEntryStore:
    """`store.EntryStore` in an SQL database. Made by `open` or `open_for_reading`."""

    def __init__(self, database: Database, fence: Fence | None, contents: SealedContents) -> None:
        """`fence` is None if the database was opened for reading."""
        self._database = database
        self._fence = fence
        self._contents = contents

    @classmethod
    def open(cls, target: Path | str, content_keys: Path | str | None = None, *, new_keys: bool = False) -> Self:
        """Open for writing: an SQLite file (a path or `sqlite:///…`, created if missing) or `postgresql+psycopg://…`.

        `content_keys` is the database of the keys that seal contents (`SqlContentKeys`); without it, no content can be
        written, read or erased. Tables are made in one transaction. Raises StoreLocked if another process writes to
        this ledger, StoreDamaged if a table, a column, an index or a trigger is missing, and StoreError for a database
        of another schema and, unless `new_keys`, if contents are sealed and the keys are gone.
        """
        database = connect(target, "ledger")
        keys = None
        try:
            keys = None if content_keys is None else SqlContentKeys.open(content_keys)
            sealed = SealedContents(database, keys)
            with database.writing() as connection:
                make_tables(connection, database.name)
                fence = Fence(connection)
            if not new_keys:
                sealed.check_keys()
            sealed.settle()
        except LedgerError:
            if keys is not None:
                keys.close()
            database.close()
            raise
        return cls(database, fence, sealed)

    @classmethod
    def open_for_reading(cls, target: Path | str, content_keys: Path | str | None = None) -> Self:
        """Open without the right to write, also while a ledger runs. Raises NotFound if there is no such file."""
        database = connect_for_reading(target)
        try:
            with database.reading() as connection:
                check_revision(connection, database.name)
            keys = None if content_keys is None else SqlContentKeys.open_for_reading(content_keys)
        except LedgerError:
            database.close()
            raise
        return cls(database, None, SealedContents(database, keys))

    def size(self) -> int:
        with self._database.reading() as connection:
            count, last = connection.execute(select(func.count(), func.max(leaves.c.index)).select_from(leaves)).one()
        if count and last != count - 1:
            raise ChainError(int(last), f"is the last of {count} entries, so {last + 1 - count} before it are missing")
        return int(count)

    def commit(self, batch: Batch) -> None:
        self._contents.settle()
        sealed, erased = self._contents.rows(batch.records), self._erased(batch)
        with self._contents.erasing([*erased]), self._database.writing() as connection:
            self._check_fence(connection)
            rows: dict[str, Sequence[Mapping[str, Any]]] = {
                **rows_of(batch.records, _chain_before(connection, batch)),
                contents.name: sealed,
            }
            for table, some in rows.items():
                insert_rows(connection, metadata.tables[table], some)
            if erased:
                self._contents.empty(connection, [*erased])
                for receipt_index, entry_index in erased.items():
                    run(connection, _PUT_ERASURE, receipt_index, entry_index)
            for tile in batch.tiles:
                run(connection, _PUT_TILE, tile.level, tile.number, tile.hashes)

    def record_checkpoint(self, size: int, note: bytes) -> None:
        self._contents.check_held()
        with self._database.writing(durable=False) as connection:
            self._check_fence(connection)
            self._contents.forget(connection)
            known = run(connection, _CHECKPOINT, size).fetchone()
            if known is None:
                run(connection, _PUT_CHECKPOINT, size, note)
            elif known[0] != note:
                raise StoreError(f"another checkpoint of size {size} is recorded already")
        self._contents.destroyed()

    def check_held(self) -> None:
        self._database.check_held()
        self._contents.check_held()

    @property
    def lock_losses(self) -> int:
        """How often the writer's lock was lost and taken again."""
        return self._database.lock_losses

    def probe(self) -> None:
        with self._database.writing() as connection:
            self._check_fence(connection)
            if self._fence is not None:
                self._fence.touch(connection)
        self._contents.settle()

    def latest_checkpoint(self) -> bytes | None:
        note = self._value(_LATEST_CHECKPOINT)
        return None if note is None else blob(note, "the latest checkpoint")

    def entry(self, index: int) -> bytes:
        data = self._value(_ENTRY, index)
        if data is None:
            raise NotFound(f"the ledger holds no entry {index}")
        return entry_bytes(index, data)

    def entries(self, start: int, limit: int) -> Sequence[bytes]:
        return [entry_bytes(index, entry) for index, entry in self._database.rows(_ENTRIES, start, limit)]

    def entries_of(self, kinds: Iterable[str], start: int = 0) -> Sequence[tuple[int, bytes]]:
        wanted = leaves.c.kind.in_(tuple(kinds)), leaves.c.index >= start
        statement = select(leaves.c.index, leaves.c.entry).where(*wanted).order_by(leaves.c.index)
        return [(index, entry_bytes(index, entry)) for index, entry in self._all(statement)]

    def tile(self, level: int, number: int) -> bytes:
        hashes = self._value(_TILE, level, number)
        if hashes is None:
            raise NotFound(f"the ledger holds no tile {level}/{number}")
        return blob(hashes, f"tile {level}/{number}")

    def about(self, start: int, end: int) -> Iterable[int]:
        return [index for (index,) in self._database.rows(_ABOUT, start, end, start, end)]

    def has_signed(self, key_id: str) -> bool:
        with self._database.reading() as connection:
            statement = _HAS_SIGNED[connection.dialect.name]
            return run(connection, statement, signed_by(key_id)).fetchone() is not None

    def indexes_of_envelopes(self, digests: Sequence[bytes]) -> Mapping[bytes, int]:
        return self._indexes(leaves, "envelope_digest", digests, "kind <> 'receipt'")

    def indexes_of_receipts(self, receipt_ids: Sequence[str]) -> Mapping[str, int]:
        return self._indexes(receipts, "receipt_id", receipt_ids)

    def receipt_id_at(self, index: int) -> str | None:
        found: str | None = self._value(_RECEIPT_ID, index)
        return found

    def output_at(self, index: int) -> JudgedOutput | None:
        receipt = read_document(Entry.from_bytes(self.entry(index)).envelope)
        return JudgedOutput.of(receipt) if isinstance(receipt, Receipt) else None

    def accuses(self, index: int) -> bool:
        return self._value(_OUTCOME, index) in ACCUSATIONS

    def retentions(self) -> Sequence[tuple[int, Retention]]:
        return retentions_of(self)

    def expired(self, expiry: Expiry, limit: int | None) -> Sequence[int]:
        return [int(row.receipt_index) for row in self._all(select_expired(expiry, limit))]

    def content(self, receipt_index: int) -> Content | None:
        return self._contents.content(receipt_index)

    def has_content(self, receipt_index: int) -> bool:
        return self._contents.has(receipt_index)

    def erased_by(self, receipt_index: int) -> int | None:
        found = self._value(_ERASED_BY, receipt_index)
        return None if found is None else int(found)

    def receipts(self, narrow: ReceiptFilter, after: int, limit: int) -> Sequence[ReceiptRow]:
        with self._database.reading() as connection:
            size = _next_index(connection)
            found: Sequence[Any] = connection.execute(select_receipts(narrow, after, limit, size)).all()
        return [ReceiptRow(**{**row._mapping, "entry": entry_bytes(row.index, row.entry)}) for row in found]

    def verdicts(
        self, receipt_id: str | None, after: int, limit: int, outcome: str | None = None, *, newest_first: bool = False
    ) -> Sequence[VerdictRow]:
        wanted = select_verdicts(receipt_id, outcome, after, limit, newest_first=newest_first)
        found = self._all(wanted)
        return [VerdictRow(**{**row._mapping, "entry": entry_bytes(row.index, row.entry)}) for row in found]

    def close(self) -> None:
        if self._fence is not None:
            with suppress(LedgerError), self._database.writing(durable=False) as connection:
                self._check_fence(connection)
                self._contents.forget(connection)
        self._contents.close()
        self._database.close()

    def _erased(self, batch: Batch) -> Mapping[int, int]:
        """The receipts whose contents a batch erases, each with the first entry that erases it. An expiry does not
        cover receipts of its own batch.
        """
        erased: dict[int, int] = {}
        for record in batch.records:
            if isinstance(record.document, Erasure):
                erased.setdefault(record.document.receipt_index, record.index)
            if isinstance(record.document, Expiry):
                for receipt_index in self.expired(record.document, None):
                    erased.setdefault(receipt_index, record.index)
        return erased

    def _indexes(self, table: Table, name: str, values: Sequence[Any], where: str = "true") -> dict[Any, int]:
        if not values:
            return {}
        statement = _INDEXES.format(table.name, name, where, marks(values))
        return dict(self._database.rows(statement, *values))

    def _value(self, statement: str, *values: int) -> Any:
        """The column of a statement's only row, None if there is no row."""
        found = self._database.rows(statement, *values)
        return found[0][0] if found else None

    def _all(self, statement: Select[Any]) -> Sequence[Any]:
        with self._database.reading() as connection:
            return connection.execute(statement).all()

    def _check_fence(self, connection: Connection) -> None:
        if self._fence is not None:
            self._fence.check(connection)


def _next_index(connection: Connection) -> int:
    last, _ = run(connection, _LAST).fetchone() or (-1, b"")
    return int(last) + 1


def _chain_before(connection: Connection, batch: Batch) -> bytes:
    """The running hash before a batch. Raises StoreError if the batch is not the next one."""
    last, chain = run(connection, _LAST).fetchone() or (-1, CHAIN_START)
    expected = int(last) + 1
    indexes = [record.index for record in batch.records]
    if indexes != list(range(expected, expected + len(indexes))):
        raise StoreError(f"expected a batch from index {expected} on, got {indexes[:1]}")
    return blob(chain, f"the running hash of entry {expected - 1}")

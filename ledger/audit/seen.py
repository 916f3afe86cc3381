"""The facts of earlier entries that later entries depend on, kept in SQLite so that memory does not grow with the
log.
"""

from __future__ import annotations

import sqlite3
from functools import lru_cache

from msgspec import Struct

from ledger.audit.contradiction import SqliteVerdicts
from ledger.audit.state_database import StateDatabase
from ledger.documents.audit import ACCUSATIONS, Verdict
from ledger.documents.draft_head import DraftHeadPublication
from ledger.documents.erasure import Erasure, Expiry, Retention
from ledger.documents.receipt import Receipt
from ledger.documents.reference_rules import JudgedOutput
from ledger.documents.signed_document import Document

_SCHEMA = (
    """
CREATE TABLE receipts
    (entry INTEGER PRIMARY KEY, receipt_id BLOB NOT NULL UNIQUE, tenant TEXT NOT NULL, issued_at TEXT NOT NULL,
     foreign_engine INTEGER NOT NULL, tokens INTEGER NOT NULL);
CREATE TABLE accusations (entry INTEGER PRIMARY KEY);
CREATE TABLE erasures (receipt INTEGER PRIMARY KEY, entry INTEGER NOT NULL);
"""
    + SqliteVerdicts.SCHEMA
)
_CACHE_KIB = 16 * 1024
_BATCH = 4096  # receipts in memory before they are written

_RECEIPT = "SELECT receipt_id, tenant, issued_at, foreign_engine, tokens FROM receipts WHERE entry = ?"


class SeenReceipt(Struct, frozen=True, gc=False):
    """An earlier receipt; `foreign`: another engine computed the output, which has `tokens` tokens."""

    receipt_id: bytes
    tenant: str
    issued_at: str
    foreign: bool
    tokens: int


class SeenOnDisk:
    """`log_walk.SeenEntries` in a temporary SQLite database: in memory while it is small, then in a file that ends with
    the process. Not thread-safe. Every method may raise StoreError.
    """

    def __init__(self) -> None:
        self.expiries: list[tuple[int, Expiry]] = []
        self.publications: list[DraftHeadPublication] = []
        self._retentions: list[tuple[int, Retention]] = []
        self._waiting: dict[int, SeenReceipt] = {}
        self._waiting_ids: set[bytes] = set()
        self._newest = b""  # the greatest id on disk
        self._asked: tuple[int, SeenReceipt | None] = (-1, None)  # rules read a receipt several times
        connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._state = StateDatabase(connection, "a temporary database")
        self._verdicts = SqliteVerdicts(self._state.connection)
        try:
            with self._state.errors():
                self._open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._state.connection.close()

    def knows(self, receipt_id: str) -> bool:
        name = _bytes(receipt_id)
        # Ids begin with a time: most are greater than all before, and so new.
        if name in self._waiting_ids or name > self._newest:
            return name in self._waiting_ids
        return self._state.row("SELECT 1 FROM receipts WHERE receipt_id = ?", name) is not None

    def remember(self, index: int, document: Document) -> None:
        """Record the next entry. A receipt's id must be new."""
        match document:
            case Receipt():
                name, output = _bytes(document.receipt_id), JudgedOutput.of(document)
                self._asked = (-1, None)
                self._waiting[index] = SeenReceipt(
                    name, document.tenant, document.issued_at, output.foreign, output.tokens
                )
                self._waiting_ids.add(name)
                if len(self._waiting) >= _BATCH:
                    self._flush()
            case Verdict() if document.outcome in ACCUSATIONS:
                self._state.write("INSERT INTO accusations VALUES (?)", index)
            case Erasure():
                self._state.write("INSERT OR IGNORE INTO erasures VALUES (?, ?)", document.receipt_index, index)
            case Retention():
                self._retentions.append((index, document))
            case Expiry():
                self.expiries.append((index, document))
            case DraftHeadPublication():
                self.publications.append(document)

    def receipt(self, index: int) -> SeenReceipt | None:
        """The receipt at an index; None for another entry and beyond the entries so far."""
        if self._asked[0] != index:
            found = self._waiting.get(index)
            if found is None and (row := self._state.row(_RECEIPT, index)) is not None:
                found = SeenReceipt(row[0], row[1], row[2], bool(row[3]), row[4])
            self._asked = (index, found)
        return self._asked[1]

    def receipt_id_at(self, index: int) -> str | None:
        receipt = self.receipt(index)
        return None if receipt is None else _text(receipt.receipt_id)

    def output_at(self, index: int) -> JudgedOutput | None:
        receipt = self.receipt(index)
        return None if receipt is None else JudgedOutput(receipt.foreign, receipt.tokens)

    def opposite(self, index: int, verdict: Verdict, auditor: str) -> int | None:
        with self._state.errors():
            return self._verdicts.opposite(index, verdict, auditor)

    def accuses(self, index: int) -> bool:
        return self._state.row("SELECT 1 FROM accusations WHERE entry = ?", index) is not None

    def retentions(self) -> list[tuple[int, Retention]]:
        return self._retentions

    def erased_by(self, index: int) -> int | None:
        """The first entry that erased the content of the receipt at `index`."""
        row = self._state.row("SELECT entry FROM erasures WHERE receipt = ?", index)
        receipt = self.receipt(index)
        if row is not None or receipt is None:
            return None if row is None else int(row[0])
        covering = (at for at, each in self.expiries if each.covers(index, receipt.tenant, receipt.issued_at))
        return next(covering, None)

    def _open(self) -> None:
        execute = self._state.connection.execute
        execute("PRAGMA journal_mode=OFF")
        execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
        execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA.split(";"):
            execute(statement)

    def _flush(self) -> None:
        rows = [
            (index, each.receipt_id, each.tenant, each.issued_at, each.foreign, each.tokens)
            for index, each in self._waiting.items()
        ]
        with self._state.errors():
            self._state.connection.executemany("INSERT INTO receipts VALUES (?, ?, ?, ?, ?, ?)", rows)
        self._newest = max(self._newest, *self._waiting_ids, b"")
        self._waiting.clear()
        self._waiting_ids.clear()


@lru_cache(maxsize=1)  # a lookup, then a record
def _bytes(receipt_id: str) -> bytes:
    return bytes.fromhex(receipt_id.replace("-", ""))


def _text(receipt_id: bytes) -> str:
    digits = receipt_id.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

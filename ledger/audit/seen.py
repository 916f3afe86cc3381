"""The facts of earlier entries that later entries depend on, kept in SQLite so that memory does not grow with the
log.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from ledger.audit.contradiction import SqliteVerdicts
from ledger.audit.state_database import StateDatabase
from ledger.documents.audit import ACCUSATIONS, Verdict
from ledger.documents.draft_head import DraftHeadPublication
from ledger.documents.erasure import Erasure, Expiry, Retention
from ledger.documents.receipt import Receipt
from ledger.documents.reference_rules import JudgedOutput
from ledger.documents.signed_document import Document
from ledger.errors import StoreError

_APPLICATION, _VERSION = 0x6B6F6C6D, 4
"""Marks of a state file in SQLite's header; the version changes with the tables and with the fold."""
_SCHEMA = (
    """
CREATE TABLE receipts
    (entry INTEGER PRIMARY KEY, receipt_id BLOB NOT NULL UNIQUE, tenant TEXT NOT NULL, issued_at TEXT NOT NULL,
     foreign_engine INTEGER NOT NULL, tokens INTEGER NOT NULL);
CREATE TABLE accusations (entry INTEGER PRIMARY KEY);
CREATE TABLE erasures (receipt INTEGER PRIMARY KEY, entry INTEGER NOT NULL);
CREATE TABLE documents (entry INTEGER PRIMARY KEY, document TEXT NOT NULL);
"""
    + StateDatabase.SCHEMA
    + SqliteVerdicts.SCHEMA
)
_CACHE_KIB = 16 * 1024
_BATCH = 4096  # receipts in memory before they are written

_RECEIPT = "SELECT receipt_id, tenant, issued_at, foreign_engine, tokens FROM receipts WHERE entry = ?"
_FEW = {kind.type_name(): kind for kind in (Retention, Expiry, DraftHeadPublication)}


class SeenReceipt(Struct, frozen=True, gc=False):
    """An earlier receipt; `foreign`: another engine computed the output, which has `tokens` tokens."""

    receipt_id: bytes
    tenant: str
    issued_at: str
    foreign: bool
    tokens: int


class SeenOnDisk:
    """`log_walk.SeenEntries` in SQLite. Not thread-safe. Every method may raise StoreError.

    Without a path the database is temporary: in memory while it is small, then in a file that ends with the process.
    With a path it is a verifier's state: the file changes only in `keep`, and a crash leaves the previous state.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Open a state, new if the file is missing. Raises StoreError for any other file, which stays unchanged, and if
        another process has it open.
        """
        self._path = path
        self.expiries: list[tuple[int, Expiry]] = []
        self.publications: list[DraftHeadPublication] = []
        self._retentions: list[tuple[int, Retention]] = []
        self._waiting: dict[int, SeenReceipt] = {}
        self._waiting_ids: set[bytes] = set()
        self._newest = b""  # the greatest id on disk
        self._asked: tuple[int, SeenReceipt | None] = (-1, None)  # rules read a receipt several times
        self._state = StateDatabase(_connected(path), "a temporary database" if path is None else f"the state {path}")
        self._verdicts = SqliteVerdicts(self._state.connection)
        try:
            with self._state.errors():
                self._open()
        except BaseException:
            self.close()
            raise

    def load(self) -> dict[str, Any] | None:
        """The last kept summary; None in a new state."""
        return self._state.summary()

    def keep(self, summary: dict[str, Any]) -> None:
        """Write a summary and all recorded facts to the disk, in one transaction."""
        self._flush()
        self._state.save_summary(summary)
        with self._state.errors():
            self._state.connection.commit()
            self._state.connection.execute("BEGIN IMMEDIATE")

    def close(self) -> None:
        """Drop the changes since the last `keep`."""
        with suppress(sqlite3.Error):
            self._state.connection.rollback()
        self._state.connection.close()
        with suppress(OSError):
            if self._path is not None and self._path.stat().st_size == 0:  # nothing was kept in it
                self._path.unlink()

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
            case Retention() | Expiry() | DraftHeadPublication():
                self._state.write("INSERT INTO documents VALUES (?, ?)", index, document.to_bytes().decode())
                self._list(index, document)

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
        if self._path is None:
            execute("PRAGMA journal_mode=OFF")
        execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
        execute("BEGIN IMMEDIATE")  # from here on, no other process has it
        marks = execute("PRAGMA application_id").fetchone()[0], execute("PRAGMA user_version").fetchone()[0]
        if marks == (0, 0) and execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
            execute(f"PRAGMA application_id={_APPLICATION}")
            execute(f"PRAGMA user_version={_VERSION}")
            for statement in _SCHEMA.split(";"):
                execute(statement)
        elif marks != (_APPLICATION, _VERSION):
            raise StoreError(
                f"{self._path} is not a state of this version, and stays unchanged; name another file to begin a new "
                "one"
            )
        newest = execute("SELECT max(receipt_id) FROM receipts").fetchone()[0]
        self._newest = b"" if newest is None else bytes(newest)
        for index, text in execute("SELECT entry, document FROM documents ORDER BY entry"):
            self._list(index, _FEW[json.loads(text)["type"]].from_bytes(text.encode()))

    def _list(self, index: int, document: Document) -> None:
        match document:
            case Retention():
                self._retentions.append((index, document))
            case Expiry():
                self.expiries.append((index, document))
            case DraftHeadPublication():
                self.publications.append(document)

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


def _connected(path: Path | None) -> sqlite3.Connection:
    try:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        return sqlite3.connect(path or "", timeout=1.0, isolation_level=None, check_same_thread=False)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"the state {path} cannot be opened: {error}") from None


@lru_cache(maxsize=1)  # a lookup, then a record
def _bytes(receipt_id: str) -> bytes:
    return bytes.fromhex(receipt_id.replace("-", ""))


def _text(receipt_id: bytes) -> str:
    digits = receipt_id.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

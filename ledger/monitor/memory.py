"""A monitor's memory: facts about a log, so that it is read once."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ledger.audit.contradiction import SqliteVerdicts
from ledger.audit.halt_breach import scopes_in
from ledger.audit.state_database import StateDatabase
from ledger.documents.audit import ACCUSATIONS, NO_ANSWERS, Verdict
from ledger.documents.erasure import Retention
from ledger.documents.halt import Scope
from ledger.documents.promise import kept_digest
from ledger.documents.receipt import Receipt
from ledger.documents.reference_rules import JudgedOutput
from ledger.documents.signed_document import Document
from ledger.errors import StoreError
from ledger.monitor.finding import Evidence

_SCHEMA = (
    """
CREATE TABLE IF NOT EXISTS receipts
    (entry INTEGER PRIMARY KEY, receipt_id TEXT NOT NULL UNIQUE, kept BLOB NOT NULL, unreplayable INTEGER NOT NULL,
     another_engine INTEGER NOT NULL, tokens INTEGER NOT NULL, served INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS served (number INTEGER PRIMARY KEY, scopes TEXT NOT NULL UNIQUE);
CREATE INDEX IF NOT EXISTS receipts_by_promise ON receipts (kept);
CREATE INDEX IF NOT EXISTS receipts_unreplayable ON receipts (entry) WHERE unreplayable;
CREATE TABLE IF NOT EXISTS deviations (entry INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS retentions (tenant TEXT PRIMARY KEY, entry INTEGER NOT NULL, policy TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS accusations
    (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, older BLOB NOT NULL, newer BLOB NOT NULL, shown_root BLOB NOT NULL,
     proof BLOB NOT NULL, UNIQUE (kind, older, newer));
CREATE TABLE IF NOT EXISTS told (key TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS summary (only INTEGER PRIMARY KEY CHECK (only = 1), document TEXT NOT NULL);
"""
    + SqliteVerdicts.SCHEMA
)
_MOST_ACCUSATIONS = 16
"""The most accusations of a kind, so that a log cannot fill the disk."""
_HASH = 32
_CACHE_KIB = 8192


class MonitorMemory:
    """`log_walk.SeenEntries`, and what a monitor adds, in a file of SQLite.

    Durability: the writes of a batch are on disk at its end; a crash leaves all of them or none. Concurrency: one
    process, one thread. Errors: StoreError.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, created with its folder if missing. Raises StoreError, also if another process has it open."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(path, timeout=1.0, isolation_level=None)
            self._state = StateDatabase(connection, f"the monitor's state {path}")
            # Exclusive: a second monitor would not see the first one's changes of the summary.
            for pragma in (
                "locking_mode=EXCLUSIVE",
                "journal_mode=WAL",
                "synchronous=FULL",
                f"cache_size=-{_CACHE_KIB}",
            ):
                connection.execute(f"PRAGMA {pragma}")
            with self.batch():
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)
        except OSError as error:
            raise StoreError(f"cannot create {path.parent}: {error.strerror}") from None
        except sqlite3.Error as error:
            raise StoreError(f"cannot open {path}: {error}; does another monitor use it?") from None

    def close(self) -> None:
        self._state.connection.close()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """A transaction: all writes inside, or none if the block raises."""
        with self._state.errors():
            self._state.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            with self._state.errors():
                self._state.connection.rollback()
            raise
        with self._state.errors():
            self._state.connection.commit()

    def load(self) -> dict[str, Any] | None:
        """The last saved summary; None for a new log."""
        row = self._state.row("SELECT document FROM summary")
        with self._state.errors():
            return None if row is None else dict(json.loads(row[0]))

    def save(self, summary: dict[str, Any]) -> None:
        """Replace the summary, which is JSON."""
        document = json.dumps(summary, separators=(",", ":"))
        self._state.write("INSERT OR REPLACE INTO summary VALUES (1, ?)", document)

    def receipt_id_at(self, index: int) -> str | None:
        row = self._state.row("SELECT receipt_id FROM receipts WHERE entry = ?", index)
        return None if row is None else str(row[0])

    def output_at(self, index: int) -> JudgedOutput | None:
        row = self._state.row("SELECT another_engine, tokens FROM receipts WHERE entry = ?", index)
        return None if row is None else JudgedOutput(bool(row[0]), row[1])

    def opposite(self, index: int, verdict: Verdict, auditor: str) -> int | None:
        with self._state.errors():
            return SqliteVerdicts(self._state.connection).opposite(index, verdict, auditor)

    def accuses(self, index: int) -> bool:
        return self._state.row("SELECT 1 FROM deviations WHERE entry = ?", index) is not None

    def retentions(self) -> list[tuple[int, Retention]]:
        """The newest of each tenant; no entry refers to another."""
        with self._state.errors():
            rows = self._state.connection.execute("SELECT entry, policy FROM retentions ORDER BY entry").fetchall()
            return [(entry, Retention.from_document(json.loads(policy))) for entry, policy in rows]

    def knows(self, receipt_id: str) -> bool:
        return self._state.row("SELECT 1 FROM receipts WHERE receipt_id = ?", receipt_id) is not None

    def remember(self, index: int, document: Document) -> None:
        if isinstance(document, Receipt):
            digest, output = kept_digest(document), JudgedOutput.of(document)
            scopes = json.dumps([scope.to_document() for scope in scopes_in(document)])
            self._state.write("INSERT OR IGNORE INTO served (scopes) VALUES (?)", scopes)
            row = (index, document.receipt_id, digest, output.foreign, output.tokens, scopes)
            self._state.write("INSERT INTO receipts SELECT ?, ?, ?, 0, ?, ?, number FROM served WHERE scopes = ?", *row)
        if isinstance(document, Verdict):
            if document.outcome in ACCUSATIONS:
                self._state.write("INSERT INTO deviations VALUES (?)", index)
            failed = document.outcome in NO_ANSWERS
            self._state.write("UPDATE receipts SET unreplayable = ? WHERE entry = ?", failed, document.receipt_index)
        if isinstance(document, Retention):
            values = (json.dumps(document.tenant), index, json.dumps(document.to_document()))
            self._state.write("INSERT OR REPLACE INTO retentions VALUES (?, ?, ?)", *values)

    def served_in(self, index: int) -> tuple[Scope, ...]:
        """The scopes of the receipt at `index` (`halt_breach.scopes_in`)."""
        query = "SELECT scopes FROM served JOIN receipts ON served.number = receipts.served WHERE entry = ?"
        row = self._state.row(query, index)
        with self._state.errors():
            return () if row is None else tuple(Scope.from_document(scope) for scope in json.loads(row[0]))

    def holds(self, digests: Iterable[bytes]) -> int:
        """The number of these `kept_digest`s that have a receipt."""
        return sum(self._state.row("SELECT 1 FROM receipts WHERE kept = ?", digest) is not None for digest in digests)

    def unreplayable(self, since: int) -> tuple[int, int]:
        """The number of receipts from an index on whose newest verdict is in `NO_ANSWERS`, and the first one's
        index.
        """
        row = self._state.row("SELECT count(*), min(entry) FROM receipts WHERE unreplayable AND entry >= ?", since)
        return (0, 0) if row is None else (row[0], row[1] or 0)

    def accuse(self, kind: str, evidence: Evidence) -> None:
        """Keep evidence once, and a bounded number of each kind."""
        self._state.write(
            "INSERT OR IGNORE INTO accusations (kind, older, newer, shown_root, proof) SELECT ?, ?, ?, ?, ? "
            "WHERE (SELECT count(*) FROM accusations WHERE kind = ?) < ?",
            *(kind, evidence.older, evidence.newer, evidence.shown_root, b"".join(evidence.proof)),
            *(kind, _MOST_ACCUSATIONS),
        )

    def accusations(self, kind: str) -> list[Evidence]:
        """The evidence of a kind, the oldest first."""
        query = "SELECT older, newer, shown_root, proof FROM accusations WHERE kind = ? ORDER BY number"
        with self._state.errors():
            rows = self._state.connection.execute(query, (kind,)).fetchall()
        return [Evidence(older, newer, root, _hashes(proof)) for older, newer, root, proof in rows]

    def reported(self) -> set[str]:
        """The keys of the reported findings."""
        with self._state.errors():
            return {key for (key,) in self._state.connection.execute("SELECT key FROM told")}

    def keep_reported(self, keys: Iterable[str]) -> None:
        """Replace the keys of the reported findings."""
        with self.batch():
            self._state.write("DELETE FROM told")
            for key in keys:
                self._state.write("INSERT INTO told VALUES (?)", key)


def _hashes(data: bytes) -> tuple[bytes, ...]:
    return tuple(data[at : at + _HASH] for at in range(0, len(data), _HASH))

"""A monitor's state file: SQLite from the standard library, synced at every commit, for one monitor at a time."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ledger.audit.contradiction import SaidInSqlite
from ledger.documents.audit import DEVIATION, NO_ANSWERS, Verdict
from ledger.documents.erasure import Retention
from ledger.documents.promise import kept_digest
from ledger.documents.receipt import Receipt
from ledger.documents.reference_rules import JudgedOutput
from ledger.documents.signed_document import Document
from ledger.errors import StoreError
from ledger.monitor.finding import Evidence

_SCHEMA = (
    """
CREATE TABLE IF NOT EXISTS summary (only INTEGER PRIMARY KEY CHECK (only = 1), document TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS receipts
    (entry INTEGER PRIMARY KEY, receipt_id TEXT NOT NULL UNIQUE, kept BLOB NOT NULL, unreplayable INTEGER NOT NULL,
     another_engine INTEGER NOT NULL, tokens INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS receipts_by_promise ON receipts (kept);
CREATE INDEX IF NOT EXISTS receipts_unreplayable ON receipts (entry) WHERE unreplayable;
CREATE TABLE IF NOT EXISTS deviations (entry INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS retentions (tenant TEXT PRIMARY KEY, entry INTEGER NOT NULL, policy TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS accusations
    (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, older BLOB NOT NULL, newer BLOB NOT NULL, shown_root BLOB NOT NULL,
     proof BLOB NOT NULL, UNIQUE (kind, older, newer));
CREATE TABLE IF NOT EXISTS told (key TEXT PRIMARY KEY);
"""
    + SaidInSqlite.SCHEMA
)
_MOST_ACCUSATIONS = 16
"""Accusations kept of a kind. The disk is not for a log to fill."""
_HASH = 32
_CACHE_KIB = 8192


class SqliteMonitorMemory:
    """Keeps the contract of `ledger.monitor.memory.MonitorMemory`."""

    def __init__(self, path: Path) -> None:
        """Opens the file, created with its folder where missing. Raises StoreError, also while another has it open."""
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=1.0, isolation_level=None)
            # Exclusive: a second monitor would not see what the first one does to the log's summary.
            for pragma in (
                "locking_mode=EXCLUSIVE",
                "journal_mode=WAL",
                "synchronous=FULL",
                f"cache_size=-{_CACHE_KIB}",
            ):
                self._connection.execute(f"PRAGMA {pragma}")
            with self.batch():
                for statement in _SCHEMA.split(";"):
                    self._connection.execute(statement)
        except OSError as error:
            raise StoreError(f"cannot create {path.parent}: {error.strerror}") from None
        except sqlite3.Error as error:
            raise StoreError(f"cannot open {path}: {error}; does another monitor use it?") from None

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def batch(self) -> Iterator[None]:
        with self._errors():
            self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            with self._errors():
                self._connection.rollback()
            raise
        with self._errors():
            self._connection.commit()

    def load(self) -> dict[str, Any] | None:
        row = self._row("SELECT document FROM summary")
        try:
            return None if row is None else dict(json.loads(row[0]))
        except (ValueError, TypeError) as error:
            raise StoreError(f"{self._path} is damaged: {error}") from None

    def save(self, summary: dict[str, Any]) -> None:
        self._write("INSERT OR REPLACE INTO summary VALUES (1, ?)", json.dumps(summary, separators=(",", ":")))

    def receipt_id_at(self, index: int) -> str | None:
        row = self._row("SELECT receipt_id FROM receipts WHERE entry = ?", index)
        return None if row is None else str(row[0])

    def output_at(self, index: int) -> JudgedOutput | None:
        row = self._row("SELECT another_engine, tokens FROM receipts WHERE entry = ?", index)
        return None if row is None else JudgedOutput(bool(row[0]), row[1])

    def opposite(self, index: int, verdict: Verdict, auditor: str) -> int | None:
        with self._errors():
            return SaidInSqlite(self._connection).opposite(index, verdict, auditor)

    def outcome_at(self, index: int) -> str | None:
        """Only of deviations: no entry refers to another verdict."""
        return None if self._row("SELECT 1 FROM deviations WHERE entry = ?", index) is None else DEVIATION

    def retentions(self) -> list[tuple[int, Retention]]:
        """The newest of each tenant; no entry refers to another."""
        with self._errors():
            rows = self._connection.execute("SELECT entry, policy FROM retentions ORDER BY entry").fetchall()
        return [(entry, Retention.from_document(json.loads(policy))) for entry, policy in rows]

    def knows(self, receipt_id: str) -> bool:
        return self._row("SELECT 1 FROM receipts WHERE receipt_id = ?", receipt_id) is not None

    def remember(self, index: int, document: Document) -> None:
        if isinstance(document, Receipt):
            digest, output = kept_digest(document), JudgedOutput.of(document)
            row = (index, document.receipt_id, digest, output.foreign, output.tokens)
            self._write("INSERT INTO receipts VALUES (?, ?, ?, 0, ?, ?)", *row)
        if isinstance(document, Verdict):
            if document.outcome == DEVIATION:
                self._write("INSERT INTO deviations VALUES (?)", index)
            failed = document.outcome in NO_ANSWERS
            self._write("UPDATE receipts SET unreplayable = ? WHERE entry = ?", failed, document.receipt_index)
        if isinstance(document, Retention):
            values = (json.dumps(document.tenant), index, json.dumps(document.to_document()))
            self._write("INSERT OR REPLACE INTO retentions VALUES (?, ?, ?)", *values)

    def holds(self, digests: Iterable[bytes]) -> int:
        return sum(self._row("SELECT 1 FROM receipts WHERE kept = ?", digest) is not None for digest in digests)

    def unreplayable(self, since: int) -> tuple[int, int]:
        row = self._row("SELECT count(*), min(entry) FROM receipts WHERE unreplayable AND entry >= ?", since)
        return (0, 0) if row is None else (row[0], row[1] or 0)

    def accuse(self, kind: str, evidence: Evidence) -> None:
        self._write(
            "INSERT OR IGNORE INTO accusations (kind, older, newer, shown_root, proof) SELECT ?, ?, ?, ?, ? "
            "WHERE (SELECT count(*) FROM accusations WHERE kind = ?) < ?",
            *(kind, evidence.older, evidence.newer, evidence.shown_root, b"".join(evidence.proof)),
            *(kind, _MOST_ACCUSATIONS),
        )

    def accusations(self, kind: str) -> list[Evidence]:
        query = "SELECT older, newer, shown_root, proof FROM accusations WHERE kind = ? ORDER BY number"
        with self._errors():
            rows = self._connection.execute(query, (kind,)).fetchall()
        return [Evidence(older, newer, root, _hashes(proof)) for older, newer, root, proof in rows]

    def told(self) -> set[str]:
        with self._errors():
            return {key for (key,) in self._connection.execute("SELECT key FROM told")}

    def tell(self, keys: Iterable[str]) -> None:
        with self.batch():
            self._write("DELETE FROM told")
            for key in keys:
                self._write("INSERT INTO told VALUES (?)", key)

    def _row(self, query: str, *values: object) -> tuple[Any, ...] | None:
        with self._errors():
            row: tuple[Any, ...] | None = self._connection.execute(query, values).fetchone()
        return row

    def _write(self, statement: str, *values: object) -> None:
        with self._errors():
            self._connection.execute(statement, values)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"the monitor's state {self._path} failed: {error}") from error


def _hashes(data: bytes) -> tuple[bytes, ...]:
    return tuple(data[at : at + _HASH] for at in range(0, len(data), _HASH))

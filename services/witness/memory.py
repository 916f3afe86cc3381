"""The witness's memory on disk: SQLite from the standard library, synced at every commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ledger.errors import StoreError
from ledger.tree.checkpoint import Checkpoint
from ledger.witness.witness import Accusation, SeenTree

_SCHEMA = """
CREATE TABLE IF NOT EXISTS latest
    (origin TEXT PRIMARY KEY, size INTEGER NOT NULL, root BLOB NOT NULL, note BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS forks
    (number INTEGER PRIMARY KEY, origin TEXT NOT NULL, size INTEGER NOT NULL, root BLOB NOT NULL, note BLOB NOT NULL,
     against BLOB NOT NULL, UNIQUE (origin, size, root));
"""
_BUSY_SECONDS = 10.0
_MOST_FORKS = 16
"""Forks kept of one log. Each alone is proof; the disk is not for a log to fill."""


class SqliteWitnessMemory:
    """Keeps the contract of `ledger.witness.witness.WitnessMemory`. A connection a call: calls come from any thread."""

    def __init__(self, path: Path) -> None:
        """Opens the file, created with its folder where missing. Raises StoreError."""
        self._path = path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot create {path.parent}: {error.strerror}") from None
        with self._connection() as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript(_SCHEMA)

    def latest(self, origin: str) -> SeenTree:
        with self._connection() as connection:
            return _latest(connection, origin)

    def advance(self, origin: str, old: SeenTree, new: SeenTree) -> bool:
        with self._writing() as connection:
            if _latest(connection, origin) != old:
                return False
            connection.execute(
                "INSERT INTO latest VALUES (?, ?, ?, ?) ON CONFLICT (origin) DO UPDATE SET "
                "size = excluded.size, root = excluded.root, note = excluded.note",
                (origin, new.size, new.root, new.note),
            )
        return True

    def accuse(self, tree: Checkpoint, accusation: Accusation) -> None:
        with self._writing() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO forks (origin, size, root, note, against) "
                "SELECT ?, ?, ?, ?, ? WHERE (SELECT count(*) FROM forks WHERE origin = ?) < ?",
                (tree.origin, tree.size, tree.root, accusation.note, accusation.against, tree.origin, _MOST_FORKS),
            )

    def accusations(self) -> list[Accusation]:
        """The proofs that a log has signed two trees of one size, oldest first."""
        with self._connection() as connection:
            rows = connection.execute("SELECT note, against FROM forks ORDER BY number").fetchall()
        return [Accusation(note, against) for note, against in rows]

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, alone, and on disk when it is left."""
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous=FULL")
                yield connection
        except sqlite3.Error as error:
            raise StoreError(f"the witness's memory failed: {error}") from error


def _latest(connection: sqlite3.Connection, origin: str) -> SeenTree:
    row = connection.execute("SELECT size, root, note FROM latest WHERE origin = ?", (origin,)).fetchone()
    return SeenTree() if row is None else SeenTree(*row)

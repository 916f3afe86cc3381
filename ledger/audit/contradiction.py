"""Verdicts of one auditor that contradict each other: EXACT and DEVIATION about one receipt, by one key.

A replay on kolm's own arithmetic has one answer, so one of the two verdicts is false: a lie, or an auditor's machine
that computes wrongly. Checks of other engines have no such answer: an engine may answer differently the next time, and
thresholds change.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ledger.documents.audit import AGAIN, DEVIATION, EXACT, Verdict
from ledger.documents.signed_document import Document


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A verdict at `index` that is the opposite of the verdict at `earlier`, by the same key, about the receipt at
    `receipt_index`.
    """

    index: int
    earlier: int
    receipt_index: int
    auditor: str

    def __str__(self) -> str:
        return (
            f"entry {self.index}: contradicts entry {self.earlier} about the receipt at entry {self.receipt_index}, "
            f"and both are signed by {self.auditor}"
        )


class EarlierVerdicts(Protocol):
    """The verdicts of auditors so far. They grow with the log, and so are kept on disk."""

    def opposite(self, index: int, verdict: Verdict, auditor: str) -> int | None:
        """Record a verdict that `auditor`, a key id, has signed; returns the entry of its opposite verdict, None if
        there is none.
        """
        ...


def contradictions(
    before: EarlierVerdicts, index: int, document: Document, signers: Sequence[str]
) -> Iterator[Contradiction]:
    """Record the next entry, and yield its contradictions with earlier entries."""
    if isinstance(document, Verdict):
        for auditor in signers:
            earlier = before.opposite(index, document, auditor)
            if earlier is not None:
                yield Contradiction(index, earlier, document.receipt_index, auditor)


class SqliteVerdicts:
    """`EarlierVerdicts` in two tables of an SQLite database. Raises the errors of SQLite."""

    SCHEMA = """
CREATE TABLE IF NOT EXISTS auditors (number INTEGER PRIMARY KEY, key_id TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS judged
    (receipt INTEGER NOT NULL, auditor INTEGER NOT NULL, exact INTEGER NOT NULL, entry INTEGER NOT NULL,
     PRIMARY KEY (receipt, auditor, exact)) WITHOUT ROWID;
"""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def opposite(self, index: int, verdict: Verdict, auditor: str) -> int | None:
        if verdict.outcome not in (EXACT, DEVIATION) or verdict.verification == AGAIN:
            return None
        execute = self._connection.execute
        execute("INSERT OR IGNORE INTO auditors (key_id) VALUES (?)", (auditor,))
        (number,) = execute("SELECT number FROM auditors WHERE key_id = ?", (auditor,)).fetchone()
        receipt, exact = verdict.receipt_index, verdict.outcome == EXACT
        execute("INSERT OR IGNORE INTO judged VALUES (?, ?, ?, ?)", (receipt, number, exact, index))
        query = "SELECT entry FROM judged WHERE (receipt, auditor, exact) = (?, ?, ?)"
        row = execute(query, (receipt, number, not exact)).fetchone()
        return None if row is None else int(row[0])

"""The findings of a monitor, which a person has to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ledger.encoding.text_forms import encode_base64

CHECKPOINT, UNPROVEN, INVALID = "CHECKPOINT", "UNPROVEN", "INVALID"
FORK, ROLLBACK, STALE = "FORK", "ROLLBACK", "STALE"
DEVIATION, INCONSISTENT, DEFIED, OVERDUE, LATE, VOID_DRAW = (
    "DEVIATION",
    "INCONSISTENT",
    "DEFIED",
    "OVERDUE",
    "LATE",
    "VOID_DRAW",
)
UNREPLAYABLE, PROMISE, HEAD, UNKNOWN = "UNREPLAYABLE", "PROMISE", "HEAD", "UNKNOWN"
CONTRADICTION, DATED_AHEAD = "CONTRADICTION", "DATED_AHEAD"

WARNINGS = frozenset((DATED_AHEAD,))
"""Kinds that a person has to know and cannot repair: a monitor reports them and continues."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Two checkpoints that a log has signed, by rising size, as signed notes.

    Two of one size prove a fork. If the sizes differ, `shown_root` is the newer tree's root over the older checkpoint's
    entries, and `proof` (RFC 6962 section 2.1.2) leads from it to the newer root: with another root in the older note,
    that is a proof too. Both are empty if the log showed no such proof.
    """

    older: bytes
    newer: bytes
    shown_root: bytes = b""
    proof: tuple[bytes, ...] = ()

    def to_document(self) -> dict[str, Any]:
        return {
            "older": self.older.decode("utf-8", "replace"),
            "newer": self.newer.decode("utf-8", "replace"),
            "shown_root": encode_base64(self.shown_root),
            "proof": [encode_base64(each) for each in self.proof],
        }


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `key` identifies it: a lasting finding keeps its key. `entry` is the index of its entry."""

    kind: str
    key: str
    message: str
    entry: int | None = None
    evidence: Evidence | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"

    @property
    def is_warning(self) -> bool:
        """Whether the log is in order in spite of it."""
        return self.kind in WARNINGS

    def to_document(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "severity": "warning" if self.is_warning else "error",
            "message": self.message,
            "entry": self.entry,
            "evidence": None if self.evidence is None else self.evidence.to_document(),
        }

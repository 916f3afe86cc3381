"""Holds a caller's promise against the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from ledger.documents.promise import Promise, open_promise
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import read_document
from ledger.encoding.timestamp import parse_timestamp
from ledger.keys.envelope import Envelope
from services.cli.jobs.trust import load_trusted
from services.client import LedgerClient
from services.client.log import ReceiptEntry, ReceiptQuery
from services.client.remembered import RememberedCheckpoint
from services.client.verified import VerifiedLedger


@dataclass(frozen=True, slots=True)
class Promised:
    """What became of a promise. `entries` are the places in the log by choice, `endings` their finish reasons.

    Both hold only what is proven. `tree_size` is of the log that was asked.
    """

    promise: Promise
    state: Literal["KEPT", "OPEN", "BROKEN"]
    entries: dict[int, int]
    endings: dict[int, str]
    tree_size: int

    @property
    def missing(self) -> list[int]:
        """Choices without a receipt in the log."""
        return [choice for choice in range(self.promise.choices) if choice not in self.entries]


def look_up(ledger: LedgerClient, data: bytes, trusted: Path, remember: Path | None, now: datetime) -> Promised:
    """KEPT where every promised receipt is proven to be in the log, OPEN where it may still come, else BROKEN.

    BROKEN takes the proof that none was left out of the list. `now` is the verifier's own clock.

    Raises UsageError without keys to check with; LedgerError for a promise or a proof that is wrong; KolmError.
    """
    keys = load_trusted(trusted)
    promise = open_promise(data, keys)
    proving = VerifiedLedger(ledger, keys, RememberedCheckpoint(remember))
    over = now > parse_timestamp(promise.due)
    query = ReceiptQuery(commitment=promise.prompt.commitment)
    found = _keeping(promise, proving.receipts(query))
    if over and len(found) < promise.choices:
        found = _keeping(promise, proving.receipts(query, complete=True))
    state: Literal["KEPT", "OPEN", "BROKEN"] = "BROKEN" if over else "OPEN"
    return Promised(
        promise=promise,
        state="KEPT" if len(found) == promise.choices else state,
        entries={choice: index for choice, (index, _) in found.items()},
        endings={choice: ending for choice, (_, ending) in found.items()},
        tree_size=proving.head().size,
    )


def _keeping(promise: Promise, listed: Iterable[ReceiptEntry]) -> dict[int, tuple[int, str]]:
    """By choice, where its receipt stands in the log and how its output ended."""
    found = {}
    for entry in listed:
        receipt = read_document(Envelope.from_bytes(entry.envelope))
        if isinstance(receipt, Receipt) and promise.is_kept_by(receipt):
            found[receipt.sampling.choice] = (entry.index, receipt.output.finish_reason)
    return found

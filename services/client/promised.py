"""Holds a caller's promise against the log.

with LedgerClient.connect("127.0.0.1:50052") as client:
    found = look_up(VerifiedLedger(client, trusted), open_promise(data, trusted), datetime.now(UTC))
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ledger.audit.fulfilment import Fulfilment
from ledger.documents.promise import Promise
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import read_document
from ledger.keys.envelope import Envelope
from services.client.log import ReceiptQuery
from services.client.verified import VerifiedLedger


@dataclass(frozen=True, slots=True)
class Promised:
    """What became of a promise. `tree_size` is of the log that was asked."""

    fulfilment: Fulfilment
    state: Literal["KEPT", "OPEN", "BROKEN"]
    tree_size: int


def look_up(ledger: VerifiedLedger, promise: Promise, now: datetime) -> Promised:
    """KEPT where every promised receipt is proven to be in the log, OPEN where it may still come, else BROKEN.

    BROKEN takes the proof that none was left out of the list. `now` is the verifier's own clock. The promise's
    signature has been checked.

    Raises LedgerError for a proof that is wrong; KolmError.
    """
    found = Fulfilment(promise)
    _observe(found, ledger, complete=False)
    over = found.is_due(now)
    if over and not found.is_kept:
        _observe(found, ledger, complete=True)
    state: Literal["OPEN", "BROKEN"] = "BROKEN" if over else "OPEN"
    return Promised(found, "KEPT" if found.is_kept else state, ledger.head().size)


def _observe(found: Fulfilment, ledger: VerifiedLedger, *, complete: bool) -> None:
    query = ReceiptQuery(commitment=found.promise.prompt.commitment)
    for entry in ledger.receipts(query, complete=complete):
        receipt = read_document(Envelope.from_bytes(entry.envelope))
        if isinstance(receipt, Receipt):
            found.observe(entry.index, receipt)

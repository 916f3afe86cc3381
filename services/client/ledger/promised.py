"""Checks of a caller's promise against the log.

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
from ledger.errors import ProofError
from ledger.keys.envelope import Envelope
from ledger.log.receipt_filter import ReceiptFilter
from services.client.errors import PermissionDenied
from services.client.ledger.verified import SignedAnswer, VerifiedLedger


@dataclass(frozen=True, slots=True)
class Promised:
    """The state of a promise. `tree_size` is of the log that was asked."""

    fulfilment: Fulfilment
    state: Literal["KEPT", "OPEN", "BROKEN"]
    tree_size: int
    answer: SignedAnswer | None = None


def look_up(ledger: VerifiedLedger, promise: Promise, now: datetime, envelope: bytes | None = None) -> Promised:
    """KEPT if every promised receipt is proven to be in the log, OPEN if it may still arrive, else BROKEN.

    BROKEN needs the proof that no receipt was left out of the list, or, for a caller who may not read the whole log and
    gives the promise's `envelope`, the log's signed answer. `now` is by the verifier's own clock. The promise's
    signature has been checked.

    Raises LedgerError for a wrong proof, or an answer that contradicts the log; KolmError.
    """
    found = Fulfilment(promise)
    _observe(found, ledger, complete=False)
    over, answer = found.is_overdue(now), None
    if over and not found.is_kept:
        try:
            _observe(found, ledger, complete=True)
        except PermissionDenied:
            if envelope is None:
                raise
            answer = _answered(found, ledger, envelope)
    state: Literal["OPEN", "BROKEN"] = "BROKEN" if over else "OPEN"
    return Promised(found, "KEPT" if found.is_kept else state, ledger.head().size, answer)


def _answered(found: Fulfilment, ledger: VerifiedLedger, envelope: bytes) -> SignedAnswer:
    signed = ledger.promise_answer(envelope)
    _observe(found, ledger, complete=False)  # entries since the first list
    hidden = [choice for choice in found.missing if choice not in signed.answer.missing]
    if hidden:
        raise ProofError(f"the log claims to hold the receipt of choice {hidden[0]}, and does not list it")
    return signed


def _observe(found: Fulfilment, ledger: VerifiedLedger, *, complete: bool) -> None:
    query = ReceiptFilter(commitment=found.promise.prompt.commitment)
    for entry in ledger.receipts(query, complete=complete):
        receipt = read_document(Envelope.from_bytes(entry.envelope))
        if isinstance(receipt, Receipt):
            found.observe(entry.index, receipt)

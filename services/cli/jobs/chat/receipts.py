"""Receipts of a conversation in the ledger, which gets them shortly after an answer."""

from __future__ import annotations

import time
from dataclasses import replace

from services.cli.failures.exits import Failed
from services.cli.jobs.chat.conversation import Said
from services.client import LedgerClient
from services.client.errors import NotFound
from services.client.ledger.log import ReceiptEntry

_PATIENCE, _PAUSE = 10.0, 0.05
"""Seconds to wait for a receipt, and between two looks."""


def receipt_of(ledger: LedgerClient, turn: Said) -> ReceiptEntry:
    """The receipt of a turn, waiting until the ledger has it. Raises Failed, KolmError."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        found = _found(ledger, turn)
        if found is not None:
            return found
        time.sleep(_PAUSE)
    raise Failed(
        f"the ledger has no receipt of the request {turn.request_id} after {_PATIENCE:g} s",
        "`kolm health` shows whether the ledger answers; receipts wait for it with the generation service",
    )


def with_receipt(ledger: LedgerClient, turn: Said) -> Said:
    """The turn with the id of a receipt that the ledger has. Raises as `receipt_of` does."""
    return replace(turn, receipt_id=receipt_of(ledger, turn).receipt_id)


def _found(ledger: LedgerClient, turn: Said) -> ReceiptEntry | None:
    if turn.receipt_id is None:
        return next(ledger.receipts(request_id=turn.request_id), None)
    try:
        return ledger.receipt(turn.receipt_id).receipt
    except NotFound:
        return None

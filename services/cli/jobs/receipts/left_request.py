"""The receipts of a request that was left with Ctrl-C: each of its choices gets one, for what it emitted until then."""

from __future__ import annotations

import time

from services.client import LedgerClient
from services.client.errors import KolmError
from services.client.ledger.log import ReceiptEntry

_PATIENCE, _PAUSE = 3.0, 0.05
"""Seconds to wait for the receipts, and between two looks."""


def receipts_of(request_id: str, choices: int, ledger: str) -> list[ReceiptEntry]:
    """What the ledger has within a few seconds; nothing where it does not answer, or nothing had begun."""
    found: list[ReceiptEntry] = []
    deadline = time.monotonic() + _PATIENCE
    try:
        with LedgerClient.connect(ledger) as client:
            while len(found) < choices and time.monotonic() < deadline:
                found = list(client.receipts(request_id=request_id))
                time.sleep(_PAUSE)
    except KolmError:
        pass
    return found

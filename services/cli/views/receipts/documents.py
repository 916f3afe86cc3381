"""Signed documents as JSON: the document, readable, and its envelope, byte for byte."""

from __future__ import annotations

import json
from typing import Any

from ledger.keys.envelope import Envelope
from services.client.ledger.log import ReceiptDetails, ReceiptEntry, Verdict


def envelope_json(envelope: bytes) -> dict[str, Any]:
    """`document` is the payload, parsed; `envelope` the DSSE JSON as text, which is what a verifier reads."""
    return {"document": json.loads(Envelope.from_bytes(envelope).payload), "envelope": envelope.decode("utf-8")}


def receipt_json(receipt: ReceiptEntry) -> dict[str, Any]:
    """A listed receipt."""
    return {
        "receipt_id": receipt.receipt_id,
        "ledger_index": receipt.index,
        "outcome": receipt.outcome,
        **envelope_json(receipt.envelope),
    }


def details_json(details: ReceiptDetails) -> dict[str, Any]:
    """A receipt with the verdicts on it. Content is never printed: it is for auditors."""
    return receipt_json(details.receipt) | {
        "verdicts": [_verdict_json(verdict) for verdict in details.verdicts],
        "content": details.content_state.lower() or None,
        "erasure_index": details.erasure_index,
    }


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    """A verdict with its place in the log."""
    return {"ledger_index": verdict.index, **envelope_json(verdict.envelope)}

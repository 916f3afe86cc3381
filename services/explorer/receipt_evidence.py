"""The evidence for a browser to check one receipt: bytes as the ledger sent them, and the keys
that this explorer trusts.

Nothing here has been checked: that is the browser's part (services/runtime/http/browser/verify.js).
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from services.client.errors import NotFound
from services.client.ledger.log import ProvenEntry, SignedCheckpoint
from services.explorer.source import Source


def evidence(source: Source, receipt_id: str) -> dict[str, Any]:
    """A JSON object; bytes in base64. Raises KolmError."""
    details = source.client.receipt(receipt_id)
    index = details.receipt.index
    entry = source.client.entry(index)
    note, proven = _proof(source, index)
    return {
        "receipt_id": receipt_id,
        "index": index,
        "entry": _base64(entry.entry),
        "envelope": _base64(details.receipt.envelope),
        "inclusion": {
            "index": proven.proof.index,
            "size": proven.proof.tree_size,
            "hashes": [_base64(each) for each in proven.proof.hashes],
        },
        "checkpoint": _base64(note),
        "verdicts": [{"index": each.index, "envelope": _base64(each.envelope)} for each in details.verdicts],
        "trusted": trusted_keys(source),
    }


def _proof(source: Source, index: int) -> tuple[bytes, ProvenEntry]:
    """Under the newest witnessed tree where that holds the entry, else under the newest one."""
    witnessed = _witnessed(source)
    if witnessed is not None and index < witnessed.tree_size:
        return witnessed.note, source.client.inclusion_proof(index, witnessed.tree_size)
    proven = source.client.inclusion_proof(index)
    return proven.checkpoint, proven


def _witnessed(source: Source) -> SignedCheckpoint | None:
    try:
        return source.client.checkpoint(witnessed=True)
    except NotFound:
        return None


def trusted_keys(source: Source) -> dict[str, Any]:
    """The trust anchors of the browser's checks: the log's name, keys by role, witnesses."""
    roles = ("receipts", "log", "auditor")
    return {
        "origin": source.origin,
        "keys": {role: [_base64(key.raw) for key in source.trusted.keys(role)] for role in roles},
        "witnesses": [each.key.to_text() for each in source.policy.witnesses] if source.policy else [],
    }


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")

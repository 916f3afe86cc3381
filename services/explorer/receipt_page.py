"""The page of one receipt, and the evidence with which the browser checks it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ledger.documents.signed_document import read_document
from ledger.encoding.canonical import parse
from ledger.errors import FormatError
from ledger.keys.envelope import Envelope
from services.client.errors import NotFound
from services.client.ledger.log import ProvenEntry, SignedCheckpoint
from services.explorer.pages import Pages, shown_fields
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


class ReceiptPage:
    """GET /receipts/{receipt_id}: the signed document, field by field. The browser checks it."""

    def __init__(self, source: Source, pages: Pages) -> None:
        self._source = source
        self._pages = pages

    def answer(self, request: Request) -> Response:
        receipt_id = request.path_params["receipt_id"]
        details = self._source.client.receipt(receipt_id)
        envelope = Envelope.from_bytes(details.receipt.envelope)
        return self._pages.of_log(
            "receipt.html",
            here="receipts",
            receipt_id=receipt_id,
            receipt=details.receipt,
            verdicts=[(each.index, read_document(Envelope.from_bytes(each.envelope))) for each in details.verdicts],
            compared=details.verdicts[-1].tokens_compared if details.verdicts else None,
            fields=_parts(parse(envelope.payload, "payload")),
            signatures=envelope.signatures,
        )


def _parts(document: object) -> dict[str, list[tuple[str, str, str]]]:
    """Heading to (path, name, text) of the fields under it; "" is the document's own. Raises FormatError."""
    if not isinstance(document, Mapping):
        raise FormatError("payload", "expected an object")
    parts: dict[str, list[tuple[str, str, str]]] = {}
    for path, text in shown_fields(_as_mapping(document)):
        part, _, name = path.rpartition(".")
        parts.setdefault(part, []).append((path, name, text))
    return parts


def _as_mapping(document: Mapping[Any, Any]) -> Mapping[str, object]:
    return document

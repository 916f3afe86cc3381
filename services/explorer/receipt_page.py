"""The page of one receipt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ledger.documents.signed_document import read_document
from ledger.encoding.canonical import parse
from ledger.errors import FormatError
from ledger.keys.envelope import Envelope
from services.explorer.pages import Pages
from services.explorer.shown import shown_fields
from services.explorer.source import Source


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

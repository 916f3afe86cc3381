"""The page that lists receipts."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from ledger.documents.receipt import Receipt
from ledger.encoding.canonical import parse_json
from ledger.keys.envelope import Envelope
from services.client.ledger.log import ReceiptEntry
from services.explorer.newest_receipts import Newest, newest_receipts
from services.explorer.pages import Pages
from services.explorer.search import CHOICES, Search, read_search
from services.explorer.source import Source

_ROWS = 25


@dataclass(frozen=True, slots=True)
class Row:
    """A receipt, and what its signed document says about speculation."""

    receipt: ReceiptEntry
    acceptance: float | None
    speedup: float | None


class ReceiptList:
    """GET /receipts: the newest first; each row is proven to be in the log before it is shown."""

    def __init__(self, source: Source, pages: Pages) -> None:
        self._source = source
        self._pages = pages

    def answer(self, request: Request) -> Response:
        search = read_search(request.query_params)
        size = self._source.proving.head().size
        found = Newest((), 0, older=False) if search.problems else self._found(search, size)
        return self._pages.of_log(
            "receipts.html",
            status=400 if search.problems else 200,
            here="receipts",
            search=search,
            choices=CHOICES,
            rows=[_row(each) for each in found.receipts],
            found=found,
            size=size,
        )

    def _found(self, search: Search, size: int) -> Newest:
        end = size if search.before is None else min(size, search.before)
        return newest_receipts(self._source.proving.receipts, search.query, end, _ROWS)


def _row(entry: ReceiptEntry) -> Row:
    document = Receipt.from_document(parse_json(Envelope.from_bytes(entry.envelope).payload))
    return Row(entry, document.spec_decode.acceptance_rate, document.measured_speedup)

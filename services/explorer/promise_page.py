"""The page where a caller holds a promise against the log."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from ledger.documents.promise import open_promise
from ledger.errors import FormatError, SignatureError
from services.client.ledger.promised import Promised, look_up
from services.explorer.pages import Pages
from services.explorer.source import Source

_SAID = {
    "KEPT": "Kept: the log holds every promised receipt.",
    "OPEN": "Open: not all of the receipts are in the log, and they are not due yet.",
    "BROKEN": "Broken: receipts are due, and proven to be missing from the log.",
}


class PromisePage:
    """GET /promises?promise=…: a form, and what became of the promise. Kept and broken are proven, not believed."""

    def __init__(self, source: Source, pages: Pages) -> None:
        self._source = source
        self._pages = pages

    def answer(self, request: Request) -> Response:
        given = request.query_params.get("promise", "").strip()
        problem: str | None = None
        found: Promised | None = None
        if given:
            try:
                promise = open_promise(given.encode(), self._source.trusted)
            except (FormatError, SignatureError) as error:
                problem = str(error)
            else:
                found = look_up(self._source.proving, promise, datetime.now(UTC))
        values = {"given": given, "problem": problem, "found": found, "said": _SAID[found.state] if found else ""}
        return self._pages.of_log("promise.html", 400 if problem else 200, here="promises", **values)

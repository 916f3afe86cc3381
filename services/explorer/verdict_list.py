"""The page that lists verdicts."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ledger.documents.signed_document import open_document
from ledger.documents.verdict import OUTCOMES, Verdict
from ledger.errors import ProofError
from ledger.keys.envelope import Envelope
from services.client.ledger.log import Verdict as Listed
from services.explorer.pages import Pages
from services.explorer.source import Source

_ROWS = 50


class VerdictList:
    """GET /verdicts: a page of the ledger's list, the newest first; each is signed by a trusted auditor."""

    def __init__(self, source: Source, pages: Pages) -> None:
        self._source = source
        self._pages = pages

    def answer(self, request: Request) -> Response:
        outcome = request.query_params.get("outcome")
        outcome = outcome if outcome in OUTCOMES else None
        page = self._source.client.newest_verdicts(
            outcome=outcome, page_size=_ROWS, page_token=request.query_params.get("page", "")
        )
        return self._pages.of_log(
            "verdicts.html",
            here="verdicts",
            verdicts=[(each.index, self._opened(each)) for each in page.verdicts],
            next_page=page.next_page_token,
            outcome=outcome,
            outcomes=OUTCOMES,
        )

    def _opened(self, listed: Listed) -> Verdict:
        """The signed document; the list's own columns are not looked at."""
        document = open_document(Envelope.from_bytes(listed.envelope), self._source.trusted, listed.index)
        if not isinstance(document, Verdict):
            raise ProofError(f"entry {listed.index} is listed as a verdict and is none")
        return document

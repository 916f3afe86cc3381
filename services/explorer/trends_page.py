"""The page of plots, and their data."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from services.explorer.pages import Pages
from services.explorer.source import Source
from services.explorer.trends import Trends

_PATIENCE_SECONDS = 3.0


class TrendsPage:
    """GET /trends and /trends.json; both say how far the log has been read."""

    def __init__(self, source: Source, pages: Pages) -> None:
        self._source = source
        self._pages = pages
        self._trends = Trends(source.proving.receipts)

    def answer(self, _: Request) -> Response:
        size = self._source.proving.head().size
        finished = self._trends.catch_up(_PATIENCE_SECONDS)
        return self._pages.of_log(
            "trends.html",
            here="trends",
            totals=self._trends.totals(),
            seen=size if finished else self._trends.seen,
            size=size,
        )

    def data(self, _: Request) -> Response:
        self._trends.catch_up(_PATIENCE_SECONDS)
        return JSONResponse(self._trends.document())

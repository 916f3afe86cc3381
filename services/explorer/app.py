"""The explorer over HTTP: its routes, and its answers where the ledger is away or its proofs do not hold."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from ledger.errors import LedgerError
from services.client.errors import InvalidArgument, KolmError, NotFound
from services.explorer.lists import ReceiptList, VerdictList
from services.explorer.log_page import HaltsPage, LogPage, PromisePage, RetentionPage
from services.explorer.pages import HERE, Pages
from services.explorer.receipt_page import ReceiptPage, evidence, trusted_keys
from services.explorer.source import Source
from services.explorer.tiles import Tiles
from services.explorer.trends import TrendsPage
from services.runtime.http.own_name import OwnName
from services.runtime.http.security_headers import SecurityHeaders
from services.runtime.http.static_files import static_files


def explorer_app(source: Source) -> ASGIApp:
    """Reads from `source`, keeps nothing, changes nothing."""
    pages = Pages(source.freshness, watched=source.policy is not None)
    trends = TrendsPage(source, pages)
    tiles = Tiles(source)

    def home(_: Request) -> Response:
        return RedirectResponse("/receipts")

    def evidence_json(request: Request) -> Response:
        return JSONResponse(evidence(source, request.path_params["receipt_id"]))

    def trusted_json(_: Request) -> Response:
        return JSONResponse(trusted_keys(source))

    def check(_: Request) -> Response:
        return pages.render("receipt_file.html", here="check")

    def health(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    def failed(_: Request, error: Exception) -> Response:
        return _failure(pages, error)

    app = Starlette(
        routes=[
            Route("/", home),
            Route("/receipts", ReceiptList(source, pages).answer),
            Route("/receipts/{receipt_id}", ReceiptPage(source, pages).answer),
            Route("/receipts/{receipt_id}/evidence.json", evidence_json),
            Route("/verdicts", VerdictList(source, pages).answer),
            Route("/halts", HaltsPage(source, pages).answer),
            Route("/retention", RetentionPage(source, pages).answer),
            Route("/promises", PromisePage(source, pages).answer),
            Route("/check", check),
            Route("/trusted.json", trusted_json),
            Route("/trends", trends.answer),
            Route("/trends.json", trends.data),
            Route("/log", LogPage(source, pages).answer),
            Route("/checkpoint", tiles.answer),
            Route("/tile/{rest:path}", tiles.answer),
            Route("/health", health),
            Mount("/static", static_files(HERE / "static")),
        ],
        exception_handlers={KolmError: failed, LedgerError: failed, HTTPException: failed},
    )
    return OwnName(SecurityHeaders(app))


def _failure(pages: Pages, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return pages.render("failure.html", error.status_code, title="No such page", reason=error.detail, alarm=False)
    if isinstance(error, NotFound | InvalidArgument):
        return pages.render("failure.html", 404, title="Not in the ledger", reason=str(error), alarm=False)
    if isinstance(error, KolmError):
        return pages.render("failure.html", 503, title="The ledger does not answer", reason=str(error), alarm=False)
    return pages.render("failure.html", 502, title="The ledger's answer does not hold", reason=str(error), alarm=True)

"""The explorer over HTTP: its routes, the log's tiles, and answers where the ledger is away or does not hold."""

from __future__ import annotations

import asyncio
import gzip
from concurrent.futures import ThreadPoolExecutor

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from ledger.bundle.tiles import CHECKPOINT, ENTRIES, MAX_BUNDLE_BYTES
from ledger.errors import FormatError, LedgerError
from ledger.errors import NotFound as NoSuchTile
from services.client.errors import InvalidArgument, KolmError, NotFound
from services.client.ledger.ledger_tiles import LedgerTiles
from services.explorer.log_page import HaltsPage, LogPage, PromisePage, RetentionPage
from services.explorer.pages import HERE, Pages, Source
from services.explorer.receipts import ReceiptList, ReceiptPage, VerdictList, evidence, trusted_keys
from services.explorer.trends import TrendsPage
from services.runtime.http.browsers import RefuseRebound, SecurityHeaders, static_files

_AT_ONCE = 8
"""Entry bundles measure up to 16.8 MB, twice that while they are packed."""
_MOST_ASKED = 64  # requests for tiles that are answered or wait; the pages' threads are others

_MUTABLE = "no-cache"
_IMMUTABLE = "public, max-age=31536000, immutable"


class Tiles:
    """GET /checkpoint and /tile/…: what the ledger says, for others to judge; nothing of it is checked here.

    With a witness policy, the checkpoint is the newest that enough witnesses have cosigned: on a busy log the very
    newest never is. Tiles never change and are served for any width that the log has.
    """

    def __init__(self, source: Source) -> None:
        witnessed = source.policy is not None and source.policy.asks_for_witnesses
        self._files = LedgerTiles(source.client, witnessed=witnessed)
        self._threads = ThreadPoolExecutor(_AT_ONCE, "tiles")
        self._asked = 0

    async def answer(self, request: Request) -> Response:
        if self._asked >= _MOST_ASKED:
            return _refusal(503, "too many tiles are being read")
        self._asked += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._answer, request)
        finally:
            self._asked -= 1

    def _answer(self, request: Request) -> Response:
        path = request.url.path.removeprefix("/")
        try:
            return self._checkpoint() if path == CHECKPOINT else self._tile(path, request)
        except (FormatError, NoSuchTile) as error:
            return _refusal(404, str(error))
        except KolmError as error:
            return _refusal(503, f"the ledger does not answer: {error.message}")

    def _checkpoint(self) -> Response:
        note = self._files.read(CHECKPOINT, MAX_BUNDLE_BYTES)
        return Response(note, headers={"cache-control": _MUTABLE}, media_type="text/plain; charset=utf-8")

    def _tile(self, path: str, request: Request) -> Response:
        data = self._files.read(path, MAX_BUNDLE_BYTES)
        headers = {"cache-control": _IMMUTABLE}
        if path.startswith(f"tile/{ENTRIES}/"):  # hashes do not shrink
            headers["vary"] = "accept-encoding"
            if "gzip" in request.headers.get("accept-encoding", ""):
                headers["content-encoding"] = "gzip"
                data = gzip.compress(data, compresslevel=6, mtime=0)
        return Response(data, headers=headers, media_type="application/octet-stream")


def _refusal(status: int, reason: str) -> Response:
    headers = {"retry-after": "5"} if status == 503 else {}
    return PlainTextResponse(f"{reason}\n", status, headers)


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
    return RefuseRebound(SecurityHeaders(app))


def _failure(pages: Pages, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return pages.render("failure.html", error.status_code, title="No such page", reason=error.detail, alarm=False)
    if isinstance(error, NotFound | InvalidArgument):
        return pages.render("failure.html", 404, title="Not in the ledger", reason=str(error), alarm=False)
    if isinstance(error, KolmError):
        return pages.render("failure.html", 503, title="The ledger does not answer", reason=str(error), alarm=False)
    return pages.render("failure.html", 502, title="The ledger's answer does not hold", reason=str(error), alarm=True)

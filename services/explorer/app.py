"""The explorer over HTTP: its routes, the log's tiles, and error pages for an absent or unproven ledger."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from ledger.bundle.tiles import CHECKPOINT, ENTRIES, MAX_BUNDLE_BYTES
from ledger.errors import FormatError, LedgerError
from ledger.errors import NotFound as NoSuchTile
from services.client.errors import InvalidArgument, KolmError, NotFound
from services.client.ledger.ledger_tiles import LedgerTiles
from services.explorer.pages import HERE, Pages, Source, halts_page, log_page, promise_page, retention_page
from services.explorer.receipts import evidence, receipt_list, receipt_page, trusted_keys, verdict_list
from services.runtime.http.browsers import SecurityHeaders, static_files

_TILE_THREADS = 8
"""Few, as an entry bundle has up to 16.8 MB, and needs twice that while it is packed."""
_MOST_ASKED = 64  # requests for tiles that run or wait; pages have other threads


class Tiles:
    """GET /checkpoint and /tile/…: the ledger's answers for other verifiers, unchecked.

    With a witness policy, the checkpoint is the newest with enough cosignatures: the very newest of a busy log has
    none. Tiles never change and are served for any width that the log has.
    """

    def __init__(self, source: Source) -> None:
        witnessed = source.policy is not None and source.policy.asks_for_witnesses
        self._files = LedgerTiles(source.client, witnessed=witnessed)
        self._threads = ThreadPoolExecutor(_TILE_THREADS, "tiles")
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
            data = self._files.read(path, MAX_BUNDLE_BYTES)
        except (FormatError, NoSuchTile) as error:
            return _refusal(404, str(error))
        except KolmError as error:
            return _refusal(503, f"the ledger does not answer: {error.message}")

        if path == CHECKPOINT:
            return Response(data, headers={"cache-control": "no-cache"}, media_type="text/plain; charset=utf-8")
        headers = {"cache-control": "public, max-age=31536000, immutable"}
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
    """The explorer's app: reads from `source`, without state or changes."""
    pages, tiles = Pages(source), Tiles(source)

    def page(path: str, answer: Callable[[Pages, Request], Response]) -> Route:
        return Route(path, partial(answer, pages))

    def failed(_: Request, error: Exception) -> Response:
        return _failure(pages, error)

    app = Starlette(
        routes=[
            Route("/", lambda _: RedirectResponse("/receipts")),
            page("/receipts", receipt_list),
            page("/receipts/{receipt_id}", receipt_page),
            page("/receipts/{receipt_id}/evidence.json", evidence),
            page("/verdicts", verdict_list),
            page("/halts", halts_page),
            page("/retention", retention_page),
            page("/promises", promise_page),
            Route("/check", lambda _: pages.render("receipt_file.html", here="check")),
            page("/trusted.json", trusted_keys),
            page("/log", log_page),
            Route("/checkpoint", tiles.answer),
            Route("/tile/{rest:path}", tiles.answer),
            Route("/health", lambda _: PlainTextResponse("ok\n")),
            Mount("/static", static_files(HERE / "static")),
        ],
        exception_handlers={KolmError: failed, LedgerError: failed, HTTPException: failed},
    )
    return SecurityHeaders(app)


def _failure(pages: Pages, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        status, title, error = error.status_code, "No such page", Exception(error.detail)
    elif isinstance(error, NotFound | InvalidArgument):
        status, title = 404, "Not in the ledger"
    elif isinstance(error, KolmError):
        status, title = 503, "The ledger does not answer"
    else:
        status, title = 502, "The ledger's answer does not hold"
    return pages.render("failure.html", status, title=title, reason=str(error), alarm=status == 502)

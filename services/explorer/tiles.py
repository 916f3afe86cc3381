"""The log for other people's clients and monitors: C2SP tlog-tiles over HTTP, as the log grows."""

from __future__ import annotations

import asyncio
import gzip
from concurrent.futures import ThreadPoolExecutor

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ledger.bundle.tlog_tiles import CHECKPOINT, ENTRIES, MAX_BUNDLE_BYTES
from ledger.errors import FormatError, NotFound
from services.client.errors import KolmError
from services.client.ledger.ledger_tiles import LedgerTiles
from services.explorer.source import Source

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
        except (FormatError, NotFound) as error:
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

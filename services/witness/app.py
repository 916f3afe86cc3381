"""The witness over HTTP (c2sp.org/tlog-witness): its routes and answers."""

from __future__ import annotations

import logging
from collections.abc import Collection

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ledger.errors import (
    Forked,
    FormatError,
    Inconsistent,
    LedgerError,
    StaleRequest,
    UnknownLog,
    UnsignedCheckpoint,
)
from ledger.keys.note import VerifierKey
from ledger.witness.cosignature import MAX_REQUEST_BYTES, PATH, SIZE_TYPE
from ledger.witness.witness import Witness
from services.runtime.metrics import Metrics
from services.witness.memory import SqliteWitnessMemory


def watch(registry: CollectorRegistry, memory: SqliteWitnessMemory, logs: Collection[str]) -> None:
    """Ask the memory about these logs, by origin, at each scrape."""
    read = Metrics(registry).read
    read("kolm_witness_cosigned_entries", lambda: {(log,): memory.latest(log).size for log in logs})
    read("kolm_witness_forks", lambda: len(memory.accusations()))


_log = logging.getLogger(__name__)

_STATUS: tuple[tuple[type[LedgerError], int], ...] = (
    (FormatError, 400),
    (UnsignedCheckpoint, 403),
    (UnknownLog, 404),
    (Inconsistent, 422),
)


def witness_app(witness: Witness, verifier_key: VerifierKey) -> Starlette:
    """POST /add-checkpoint; GET / and GET /vkey give the witness's own key, GET /health says that it answers."""

    async def add_checkpoint(request: Request) -> Response:
        body = await _body(request)
        if body is None:
            return PlainTextResponse(f"at most {MAX_REQUEST_BYTES} bytes are taken\n", 413)
        try:
            return PlainTextResponse(await run_in_threadpool(witness.add_checkpoint, body))
        except LedgerError as error:
            return _refusal(error)

    async def vkey(_: Request) -> Response:
        return PlainTextResponse(verifier_key.to_text() + "\n")

    async def health(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    return Starlette(
        routes=[
            Route(f"/{PATH}", add_checkpoint, methods=["POST"]),
            Route("/", vkey),
            Route("/vkey", vkey),
            Route("/health", health),
        ]
    )


async def _body(request: Request) -> bytes | None:
    """The body, None where it is larger than any request."""
    received = bytearray()
    async for piece in request.stream():
        received += piece
        if len(received) > MAX_REQUEST_BYTES:
            return None
    return bytes(received)


def _refusal(error: LedgerError) -> Response:
    if isinstance(error, StaleRequest | Forked):
        if isinstance(error, Forked):
            _log.error("a log has forked, both checkpoints are kept as proof: %s", error)
        return Response(f"{error.size}\n", 409, {"content-type": SIZE_TYPE})  # exactly so, without a charset
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 503)
    if status == 503:
        _log.error("cannot answer", exc_info=error)
        return PlainTextResponse("the witness's memory failed; ask again\n", 503)
    return PlainTextResponse(f"{error}\n", status)

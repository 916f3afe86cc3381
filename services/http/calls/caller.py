"""The caller of one request: their token, their body, within limits, and whether they are still there."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from services.client.connection.token import is_here
from services.http.calls.api_error import CLOSED, ApiError
from services.runtime.http.own_name import is_forwarded, is_name_of_dns

_Value = TypeVar("_Value")

_TOKEN_PREFIX = "kolm_"


def token(request: Request) -> str:
    """Metadata for the generation server on the caller's behalf: their token, or none, which it then decides upon.

    OpenAI's clients always send a key. One that is no token of kolm is taken for none, on this machine alone: a caller
    from elsewhere, also by way of a proxy, has to bring one, for the front's own connection looks as if it came from
    this machine. So has one that calls this machine by a name of DNS. Raises ApiError.
    """
    scheme, _, sent = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and sent.startswith(_TOKEN_PREFIX):
        return sent
    if not _is_here(request):
        raise ApiError(
            401,
            f"expected authorization: Bearer {_TOKEN_PREFIX}…; `kolm tokens create` makes a token (on this machine "
            "http://127.0.0.1 needs none)",
            "token_required",
        )
    return ""


class Gate:
    """Turns away callers from elsewhere without a token, before any endpoint; `open_` are paths for everybody."""

    def __init__(self, app: ASGIApp, open_: Container[str]) -> None:
        self._app = app
        self._open = open_

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._open:
            try:
                token(Request(scope))
            except ApiError as refusal:
                await refusal.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_here(request: Request) -> bool:
    if request.client is None or is_forwarded(request.headers) or is_name_of_dns(request.headers.get("host", "")):
        return False
    return is_here(f"[{request.client.host}]:0" if ":" in request.client.host else f"{request.client.host}:0")


async def body(request: Request, most: int, seconds: float) -> bytes:
    """The whole body. Raises ApiError where it is none of JSON, too large, or too slow."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "expected content-type: application/json", "unsupported_media_type")
    received = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                received += piece
                if len(received) > most:
                    raise ApiError(413, f"the body is larger than {most:,} bytes", "request_too_large")
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {seconds:g} s", "request_timeout") from None
    except ClientDisconnect:
        raise _closed() from None
    return bytes(received)


async def while_there(request: Request, work: Coroutine[Any, Any, _Value]) -> _Value:
    """The result of `work`, which is cancelled where the caller leaves first. After the body has been read."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise _closed()
        return await working
    finally:
        await _ended(working, leaving)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _ended(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _closed() -> ApiError:
    return ApiError(CLOSED, "the caller has left", "client_closed_request")

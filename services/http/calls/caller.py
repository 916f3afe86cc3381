"""The caller of one request: their token, their body, within limits, and whether they are still there."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from services.client import AsyncRuntime
from services.client.errors import KolmError, Unauthenticated
from services.http.calls.api_error import CLOSED, ApiError, of_kolm
from services.runtime.http.own_name import is_rebound

_Value = TypeVar("_Value")

_TOKEN_PREFIX = "kolm_"
_ASK_SECONDS = 10.0
_REMEMBERED_SECONDS = 30.0
_REMEMBERED = 4096


def token(request: Request) -> str:
    """The caller's token, or none: the generation server decides upon both.

    OpenAI's clients always send a key; one that is no token of kolm counts as none. A caller on this machine who calls
    it by a name of DNS has to bring one, also where anybody may generate. Raises ApiError.
    """
    scheme, _, sent = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and sent.startswith(_TOKEN_PREFIX):
        return sent
    if is_rebound(request.headers, request.scope.get("client")):
        raise _nameless()
    return ""


class Callers:
    """Who may call, as the generation server says: the front has no file of principals and trusts no address.

    A caller who was let in is remembered for a while, so that the answer costs a call now and then. Each request's own
    call is decided upon again, by the server. On one event loop.
    """

    def __init__(self, runtime: AsyncRuntime, clock: Callable[[], float] = time.monotonic) -> None:
        self._runtime = runtime
        self._clock = clock
        self._until: OrderedDict[str, float] = OrderedDict()

    async def admit(self, token: str) -> None:
        """Returns for one who may call. Raises ApiError, also where the generation server cannot be asked."""
        if self._until.get(token, 0.0) > self._clock():
            return
        try:
            await self._runtime.with_token(token).model_info(timeout=_ASK_SECONDS)
        except Unauthenticated as error:
            raise (of_kolm(error, {}) if token else _nameless()) from None
        except KolmError as error:
            raise of_kolm(error, {}) from None
        self._until.pop(token, None)
        self._until[token] = self._clock() + _REMEMBERED_SECONDS
        if len(self._until) > _REMEMBERED:
            self._until.popitem(last=False)


class Gate:
    """Turns away callers who may not call, before any endpoint reads a body; `open_` are paths for everybody."""

    def __init__(self, app: ASGIApp, callers: Callers, open_: Container[str]) -> None:
        self._app = app
        self._callers = callers
        self._open = open_

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._open:
            try:
                await self._callers.admit(token(Request(scope)))
            except ApiError as refusal:
                await refusal.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _nameless() -> ApiError:
    how = "`kolm up` prints one at its start, `kolm tokens create` makes one"
    return ApiError(401, f"expected an API key, authorization: Bearer {_TOKEN_PREFIX}…: {how}", "token_required")


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

"""How many requests are worked on at once; the next one is told to come back. A quarter is for callers with a token."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from services.http.calls.api_error import ApiError
from services.http.calls.caller import token


class Admission:
    """Counts requests from their first byte to the last byte of their answer. On one event loop."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        most = self._most if token(Request(scope)) else max(1, 3 * self._most // 4)
        if self._running >= most:
            full = ApiError(429, f"{most} requests are running; come back later", "too_many_requests")
            await full.response()(scope, receive, send)
            return
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1

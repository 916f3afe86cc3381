"""The span of a request that an HTTP server answers, below its caller's."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from services.client.connection import tracing


class TracedApp:
    """Answers each request inside of a span. Nothing where the program does not trace."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not tracing.in_use():
            await self._app(scope, receive, send)
            return
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        attributes = {"http.request.method": scope["method"]}
        with tracing.span(scope["method"], attributes, headers.get(tracing.TRACEPARENT, "")):
            await self._app(scope, receive, send)

"""Metrics of an HTTP server: requests by route and status, how long they took, how many are being answered."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.runtime.telemetry.metrics import Metrics

_UNKNOWN = "other"  # of a path that no route has: strangers must not make series


class MeasuredApp:
    """Measures each request from its first byte to the last byte of its answer."""

    def __init__(self, app: ASGIApp, registry: CollectorRegistry) -> None:
        metrics = Metrics(registry)
        self._app = app
        self._requests = metrics.counter("kolm_http_requests")
        self._seconds = metrics.histogram("kolm_http_seconds")
        self._in_flight = metrics.gauge("kolm_http_requests_in_flight")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 499  # the caller left before there was one

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        started = time.perf_counter()
        try:
            with self._in_flight.track_inprogress():
                await self._app(scope, receive, sending)
        finally:
            route = _route(scope)
            method = scope["method"] if route != _UNKNOWN else _UNKNOWN
            self._requests.labels(method, route, str(status)).inc()
            self._seconds.labels(route).observe(time.perf_counter() - started)


def _route(scope: Scope) -> str:
    """The path with the names of its parameters in place of their values."""
    if "endpoint" not in scope:
        return _UNKNOWN
    if scope.get("root_path"):
        return f"{scope['root_path']}/"
    path: str = scope["path"]
    for name, value in scope["path_params"].items():
        path = path.replace(str(value), f"{{{name}}}", 1) if value else path
    return path

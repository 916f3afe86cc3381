"""The life of an HTTP server process, with uvicorn, its limits and metrics; the counterpart of `server.serve` for gRPC.

uvicorn limits neither the number of connections nor the time of a request's parts. A connection waits while it has not
received a whole request, or while its caller does not read an answer. It is closed if it waits too long. If too many
are open, the newest replaces the one that has waited longest: callers that send nothing, send half a request or read
nothing cannot exclude others.
"""

from __future__ import annotations

import asyncio
import gc
import math
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import h11
import uvicorn
from prometheus_client import CollectorRegistry
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from services.runtime.http.browsers import RefuseOtherNames
from services.runtime.listening import CannotListen
from services.runtime.metrics import Metrics, metrics_endpoint
from services.runtime.process import say
from services.runtime.server import LAST_WORDS_SECONDS, ready_file, received_signals
from services.runtime.settings import ServerSettings

MOST_CONNECTIONS = 512
HEADER_SECONDS, BODY_SECONDS, ANSWER_SECONDS = 20.0, 60.0, 60.0
_LEAST_READ = 32 * 1024
"""A caller with an answer waiting takes this many bytes of it in each `answer_seconds`, and need be no faster."""
_MOST_HEADER = 65_536  # bytes; uvicorn's own bound too
_FREE_PIECES, _PIECE_BYTES = 1000, 256
"""A body may come in this many pieces, and one more for each 256 bytes: each costs the event loop alike."""

_METHODS = ("GET", "HEAD", "POST", "OPTIONS")
_UNKNOWN = "other"  # of a path that no route has, or another method: strangers must not make series


@dataclass(slots=True)
class Connections:
    """The connections of one server. Used on one event loop."""

    most: int = MOST_CONNECTIONS
    header_seconds: float = HEADER_SECONDS
    body_seconds: float = BODY_SECONDS
    answer_seconds: float = ANSWER_SECONDS
    _open: set[_Connection] = field(default_factory=set)
    _waiting: dict[_Connection, None] = field(default_factory=dict)  # the longest first

    def protocol(self) -> type[asyncio.Protocol]:
        """The class that `uvicorn.Config(http=…)` takes."""
        return cast(type[asyncio.Protocol], partial(_Connection, self))

    def opened(self, connection: _Connection) -> None:
        """Count a connection. If there are too many, close the one that has waited longest, or the new one if none
        does.
        """
        self._open.add(connection)
        if len(self._open) > self.most:
            longest = next(iter(self._waiting), connection)
            self.closed(longest)
            longest.transport.abort()

    def waits(self, connection: _Connection, waits: bool) -> None:
        self._waiting.pop(connection, None)
        if waits and connection in self._open:
            self._waiting[connection] = None

    def closed(self, connection: _Connection) -> None:
        self._open.discard(connection)
        self._waiting.pop(connection, None)


class _Connection(H11Protocol):
    """uvicorn's connection, closed by a timer if a header or a body is too slow, or an answer is not read."""

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self.conn = _Counting(h11.SERVER, _MOST_HEADER)
        self._of = connections
        self._timed: str | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._of.opened(self)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._time(None)
        self._of.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._look()

    def _look(self) -> None:
        """Time the part that its caller is to send or to read next, if that is another than before."""
        if self.flow.write_paused:
            self._time("answer")
        elif self.cycle is None or self.cycle.response_complete:
            self._time("header")
        else:
            self._time("body" if self.cycle.more_body else None)

    def _time(self, part: str | None) -> None:
        if part == self._timed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timed, self._timer = part, None
        self._of.waits(self, part is not None)
        if part == "answer":
            self._expect_reading(self.transport.get_write_buffer_size() + _LEAST_READ)
        elif part is not None:
            seconds = self._of.header_seconds if part == "header" else self._of.body_seconds
            self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _expect_reading(self, before: int) -> None:
        """Look again and again whether enough of an answer has been read since `before` bytes of it waited."""
        waiting = self.transport.get_write_buffer_size()
        if waiting > before - _LEAST_READ:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(self._of.answer_seconds, self._expect_reading, waiting)


class _Counting(h11.Connection):
    """h11's connection, which refuses a body in needlessly many pieces."""

    _pieces = _bytes = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._pieces = self._bytes = 0
        elif isinstance(event, h11.Data):
            self._pieces += 1
            self._bytes += len(event.data)
            if self._pieces > _FREE_PIECES + self._bytes // _PIECE_BYTES:
                raise h11.RemoteProtocolError("the body comes in too many pieces")
        return event


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
            method = scope["method"] if route != _UNKNOWN and scope["method"] in _METHODS else _UNKNOWN
            self._requests.labels(method, route, str(status)).inc()
            self._seconds.labels(route).observe(time.perf_counter() - started)


def _route(scope: Scope) -> str:
    """The path of the request's route, with the names of its parameters."""
    if "endpoint" not in scope:
        return _UNKNOWN
    if scope.get("root_path"):
        return f"{scope['root_path']}/"
    for route in scope["app"].routes:
        if isinstance(route, Route) and route.endpoint is scope["endpoint"] and route.path_regex.match(scope["path"]):
            return route.path_format
    return _UNKNOWN


async def serve_http(
    name: str,
    app: ASGIApp,
    settings: ServerSettings,
    *,
    registry: CollectorRegistry | None = None,
    connections: Connections | None = None,
    interrupt: Callable[[], None] | None = None,
) -> None:
    """Serve `app` until SIGINT or SIGTERM, then let running requests end within the grace period.

    A second signal ends them immediately. Otherwise as `serving_http`.
    """
    with received_signals() as received:
        async with serving_http(name, app, settings, registry, connections, interrupt, received) as serving:
            await _first(serving, received)


@asynccontextmanager
async def serving_http(
    name: str,
    app: ASGIApp,
    settings: ServerSettings,
    registry: CollectorRegistry | None = None,
    connections: Connections | None = None,
    interrupt: Callable[[], None] | None = None,
    hurry: asyncio.Queue[signal.Signals] | None = None,
) -> AsyncIterator[asyncio.Future[None]]:
    """A block in which `app` is served. After it running requests have the grace period, or until `hurry` receives a
    value; then `interrupt` ends them by errors of their own, and the remaining ones are cancelled. `connections` are
    limits other than the default ones. Metrics go to `registry`.

    Raises CannotListen, TlsFilesInvalid.
    """
    registry = registry or CollectorRegistry()
    Metrics(registry).process(name)
    tls, names = settings.server_tls, settings.served_names
    last_words = LAST_WORDS_SECONDS if interrupt else 0.0
    server = _Server(
        uvicorn.Config(
            MeasuredApp(app if names is None else RefuseOtherNames(app, names), registry),
            ssl_context_factory=None if tls is None else lambda _config, _default: tls.context(),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,  # X-Forwarded-For and its kin are the caller's word
            http=(connections or Connections()).protocol(),
            timeout_graceful_shutdown=max(1, math.ceil(settings.grace_seconds + last_words)),
        )
    )
    host = settings.listen.rpartition(":")[0].strip("[]")
    with (
        _listening(settings.listen) as listener,
        metrics_endpoint(registry, host, settings.metrics_port, tls, names) as metrics_port,
    ):
        address = _address(listener)
        gc.freeze()  # as in services.runtime.server
        gc.enable()
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            with ready_file(settings.ready_file, address):
                say(f"{name} listening on {address}")
                if metrics_port is not None:
                    say(f"{name} metrics on {host}:{metrics_port}")
                yield serving
        finally:
            server.should_exit = True
            hurried = await _first(serving, hurry or asyncio.Queue(), settings.grace_seconds)
            if interrupt is not None and not serving.done():
                interrupt()
                await asyncio.wait({serving}, timeout=last_words)
            server.force_exit = hurried
            await serving
    say(f"{name} stopped")


class _Server(uvicorn.Server):
    """Leaves signals to its caller: uvicorn would raise them again at its end, and the process would die of them."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _first(
    serving: asyncio.Future[None], received: asyncio.Queue[signal.Signals], seconds: float | None = None
) -> bool:
    """Returns once a signal comes, serving has ended, or the time is over. Whether there was a signal."""
    signalled = asyncio.ensure_future(received.get())
    either: set[asyncio.Future[Any]] = {serving, signalled}
    await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    return not signalled.cancel()


def _listening(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if "[" in host else socket.AF_INET
    try:
        listener = socket.create_server((host.strip("[]"), int(port)), family=family)
    except OSError:
        raise CannotListen(address) from None
    # Its connections inherit this; asyncio sets it only if a socket names its protocol. Without it an event of a stream
    # waits, up to 40 ms, until the caller's machine has acknowledged the previous event.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

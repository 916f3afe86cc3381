"""The life of a server process: start, say so, serve until a signal, drain, stop.

First SIGINT or SIGTERM: health says NOT_SERVING, `on_drain` ends calls that would never end, running calls get the
grace period. When it is over, or at a second signal, `interrupt` ends calls by an error of their own, and what still
runs is cancelled.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge

from services.runtime.access.credentials import new_token, token_left
from services.runtime.logs import say
from services.runtime.process import access_of
from services.runtime.server import Mount, RunningServer, start_server
from services.runtime.settings.settings import RpcServerSettings
from services.runtime.telemetry.metrics import Metrics
from services.runtime.telemetry.metrics_endpoint import metrics_endpoint

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_HEALTH_SECONDS = 1.0
_LONGEST_SECONDS = 86_400.0
_LAST_WORDS_SECONDS = 2.0  # for errors on their way to callers, after the grace period


async def serve(
    name: str,
    mounts: Sequence[Mount],
    settings: RpcServerSettings,
    *,
    registry: CollectorRegistry | None = None,
    on_drain: Callable[[], None] = lambda: None,
    interrupt: Callable[[], None] | None = None,
    healthy: Callable[[], bool] = lambda: True,
) -> None:
    """Serve `mounts` until a signal; returns when the last call has ended. Raises CannotListen, CannotStart.

    `name` is what the "<name> listening on host:port" line on stderr says. `on_drain` and
    `interrupt` run on the event loop, once.
    `healthy` is called every second, on the event loop: while it is False, health is NOT_SERVING for the whole server
    and each of `mounts`, and calls are still answered.
    """
    registry = registry or CollectorRegistry()
    metrics = Metrics(registry)
    metrics.process(name)
    host, tls = settings.listen.rpartition(":")[0].strip("[]"), settings.server_tls
    endpoint = metrics_endpoint(registry, host, settings.metrics_port, tls)
    local = new_token() if settings.principals is None else None
    with received_signals() as received, endpoint as metrics_port:
        access = access_of(settings, local)
        server = await start_server(mounts, settings.listen, registry, access, tls, settings.limits)
        async with _stopping(server):
            reporting = _reporting(server, mounts, healthy, metrics.gauge("kolm_serving"))
            left = token_left(server.address, local)
            with left as place, ready_file(settings.ready_file, server.address), reporting:
                say(f"{name} listening on {server.address}")
                if place is not None:
                    say(f"{name} may be asked with the token of this start, in {place}")
                if metrics_port is not None:
                    say(f"{name} metrics on {host}:{metrics_port}")
                await received.get()
            await _drain(server, settings.grace_seconds, received, on_drain, interrupt)
    say(f"{name} stopped")


async def _drain(
    server: RunningServer,
    grace: float,
    received: asyncio.Queue[signal.Signals],
    on_drain: Callable[[], None],
    interrupt: Callable[[], None] | None,
) -> None:
    await server.drain()
    on_drain()
    last_words = _LAST_WORDS_SECONDS if interrupt else 0.0
    # Ended below: gRPC has crashed where a grace of its own ran out while another call stopped the server.
    stopping = asyncio.ensure_future(server.stop(_LONGEST_SECONDS))
    impatience = asyncio.ensure_future(received.get())
    await asyncio.wait({stopping, impatience}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
    impatience.cancel()
    if interrupt is not None and not stopping.done():
        interrupt()
        await asyncio.wait({stopping}, timeout=last_words)
    if not stopping.done():
        await server.stop(None)
    await stopping


@contextmanager
def _reporting(
    server: RunningServer, mounts: Sequence[Mount], healthy: Callable[[], bool], serving: Gauge
) -> Iterator[None]:
    """In this block health and `serving` follow `healthy`."""
    reporting = asyncio.ensure_future(_report(server, ["", *(mount.service for mount in mounts)], healthy, serving))
    try:
        yield
    finally:
        reporting.cancel()
        serving.set(0)


async def _report(server: RunningServer, services: Sequence[str], healthy: Callable[[], bool], serving: Gauge) -> None:
    reported = True
    while True:
        now = healthy()
        serving.set(now)
        if now != reported:
            for service in services:
                await server.set_serving(service, now)
            reported = now
        await asyncio.sleep(_HEALTH_SECONDS)


@asynccontextmanager
async def _stopping(server: RunningServer) -> AsyncIterator[None]:
    """Stops the server at the end of the block, however that ends."""
    try:
        yield
    finally:
        await server.stop(None)


@contextmanager
def received_signals() -> Iterator[asyncio.Queue[signal.Signals]]:
    """In this block signals become items of a queue; none is lost."""
    received: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, received.put_nowait, number)
    try:
        yield received
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


@contextmanager
def ready_file(path: Path | None, address: str) -> Iterator[None]:
    """A file with `host:port`, complete or missing, while the server takes calls."""
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(address + "\n")
    os.replace(temporary, path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)

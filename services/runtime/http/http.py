"""The life of an HTTP server process: as `lifecycle.serve` is for gRPC, with uvicorn."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from services.runtime.http.connections import Connections
from services.runtime.http.http_metrics import MeasuredApp
from services.runtime.http.http_span import TracedApp
from services.runtime.lifecycle import ready_file, received_signals
from services.runtime.listening import CannotListen
from services.runtime.logs import say
from services.runtime.settings.settings import ServerSettings
from services.runtime.telemetry.metrics import Metrics
from services.runtime.telemetry.metrics_endpoint import metrics_endpoint


async def serve_http(
    name: str,
    app: ASGIApp,
    settings: ServerSettings,
    *,
    registry: CollectorRegistry | None = None,
    connections: Connections | None = None,
) -> None:
    """Serve `app` until SIGINT or SIGTERM, then let running requests end within the grace period.

    A second signal ends them at once. `connections` are limits other than the usual ones. Metrics go to `registry`.
    Raises CannotListen, TlsFilesInvalid.
    """
    registry = registry or CollectorRegistry()
    Metrics(registry).process(name)
    tls = settings.server_tls
    server = _Server(
        uvicorn.Config(
            MeasuredApp(TracedApp(app), registry),
            ssl_context_factory=None if tls is None else lambda _config, _default: tls.context(),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            http=(connections or Connections()).protocol(),
            timeout_graceful_shutdown=max(1, int(settings.grace_seconds)),
        )
    )
    host = settings.listen.rpartition(":")[0].strip("[]")
    with (
        _listening(settings.listen) as listener,
        received_signals() as received,
        metrics_endpoint(registry, host, settings.metrics_port, tls) as metrics_port,
    ):
        address = _address(listener)
        with ready_file(settings.ready_file, address):
            serving = asyncio.ensure_future(server.serve(sockets=[listener]))
            say(f"{name} listening on {address}")
            if metrics_port is not None:
                say(f"{name} metrics on {host}:{metrics_port}")
            await _first(serving, received)
        server.should_exit = True
        await _first(serving, received)
        server.force_exit = True
        await serving
    say(f"{name} stopped")


class _Server(uvicorn.Server):
    """Leaves signals to its caller: uvicorn would raise them again at its end, and the process would die of them."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _first(serving: asyncio.Future[None], received: asyncio.Queue[signal.Signals]) -> None:
    """Returns once a signal comes, or serving has ended."""
    signalled = asyncio.ensure_future(received.get())
    either: set[asyncio.Future[Any]] = {serving, signalled}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()


def _listening(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if "[" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), int(port)), family=family)
    except OSError:
        raise CannotListen(address) from None


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

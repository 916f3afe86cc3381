"""A gRPC server, and the life of its process: start, report readiness, serve until a signal, drain, stop.

At the first SIGINT or SIGTERM health becomes NOT_SERVING, `on_drain` ends endless calls, and running calls get the
grace period. After it, or at a second signal, `interrupt` ends calls by an error of their own, and the remaining calls
are cancelled.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry, Gauge

from kolm.telemetry.v1 import telemetry_pb2 as pb
from kolm.telemetry.v1.telemetry_pb2_grpc import TelemetryServiceServicer, add_TelemetryServiceServicer_to_server
from ledger.durable_file import keep_durably
from services.runtime.access import PERMISSIONS, Access
from services.runtime.calls import CallInterceptor
from services.runtime.credentials import new_token, token_left
from services.runtime.in_process import InProcessChannel, InProcessServer
from services.runtime.limits import CallLimits, Limits
from services.runtime.listening import CannotListen, ServerTls, check_free
from services.runtime.metrics import CallMetrics, Metrics, metrics_endpoint
from services.runtime.process import access_of, say
from services.runtime.settings import RpcServerSettings

_log = logging.getLogger(__name__)

_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    # gRPC would let each connection send 16 MiB ahead once it has measured a fast one; 256 KiB fill 5 MB/s at 50 ms.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 256 * 1024),
    # Requests come as they are: a compressed one could measure a thousand times as much.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # Two servers on one port would share its calls at random, so the second one has to fail.
    ("grpc.so_reuseport", 0),
    # A caller that vanished without a FIN is noticed within 40 s and its calls are cancelled.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Callers may ping every 10 s, also while they have no calls; faster ones are sent away.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
)

_TELEMETRY = "kolm.telemetry.v1.TelemetryService"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_HEALTH_SECONDS = 1.0
_LONGEST_SECONDS = 86_400.0
LAST_WORDS_SECONDS = 2.0
"""For errors on their way to callers, after the grace period."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One gRPC service: its full name (`kolm.ledger.v1.LedgerService`) and how it gets onto a server."""

    service: str
    add: Callable[[Any], None]  # to a `grpc.aio.Server`, or an `InProcessServer`


class TelemetryServicer(TelemetryServiceServicer):
    """Telemetry of one registry. Its metrics are asked on a thread, as for a scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    async def GetMetrics(  # noqa: N802 the protocol's name
        self, request: pb.GetMetricsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetMetricsResponse:
        return await asyncio.to_thread(self._metrics)

    def _metrics(self) -> pb.GetMetricsResponse:
        samples = (sample for family in self._registry.collect() for sample in family.samples)
        return pb.GetMetricsResponse(
            samples=[
                pb.Sample(name=sample.name, labels=sample.labels, value=sample.value)
                for sample in samples
                if not sample.name.endswith("_created")
            ]
        )


@dataclass(slots=True)
class RunningServer:
    """A server that accepts calls at `address` (`host:port`, with the port that was bound)."""

    address: str
    channel: InProcessChannel  # to `mounts` and health, for callers in this process
    _server: grpc.aio.Server
    _health: health.aio.HealthServicer

    async def drain(self) -> None:
        """Set health to NOT_SERVING for everything; calls are still answered."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace: float | None) -> None:
        """Take no more calls, give the running ones `grace` seconds (None is 0), then cancel them. Idempotent."""
        await self._server.stop(grace)

    async def set_serving(self, service: str, serving: bool) -> None:
        """Set the health of one service, or, with the empty name, of the whole server."""
        await self._health.set(service, _health_status(serving))


def _limiting(limits: Limits) -> tuple[tuple[str, int], ...]:
    return (
        ("grpc.max_receive_message_length", limits.message_bytes),
        ("grpc.max_concurrent_streams", limits.calls_of_caller),
        ("grpc.max_allowed_incoming_connections", limits.connections),
        ("grpc.server_handshake_timeout_ms", round(limits.handshake_seconds * 1000)),
        ("grpc.max_connection_idle_ms", round(limits.idle_seconds * 1000)),
        ("grpc.max_connection_age_ms", round(limits.age_seconds * 1000)),  # running calls end in their own time
    )


async def start_server(
    mounts: Sequence[Mount],
    listen: str,
    registry: CollectorRegistry | None = None,
    access: Access | None = None,
    tls: ServerTls | None = None,
    limits: Limits | None = None,
) -> RunningServer:
    """Bind `listen` (`host:port`, port 0 takes a free one) and serve `mounts`, health, telemetry and reflection.

    Without `access` there are no principals. Runs on the event loop that serves. Raises CannotListen, TlsFilesInvalid.
    """
    registry, limits = registry or CollectorRegistry(), limits or Limits()
    calls = CallMetrics(registry)
    interceptor = CallInterceptor(calls, access or Access(), CallLimits(limits))
    server = grpc.aio.server(interceptors=[interceptor], options=(*_OPTIONS, *_limiting(limits)))
    in_process = InProcessServer(interceptor)
    for mount in mounts:
        mount.add(server)
        mount.add(in_process)
    add_TelemetryServiceServicer_to_server(TelemetryServicer(registry), server)
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, in_process)
    names = ["", health.SERVICE_NAME, _TELEMETRY, *(mount.service for mount in mounts)]
    calls.begin(path for path in PERMISSIONS if path.split("/")[1] in names)
    reflection.enable_server_reflection([*names[1:], reflection.SERVICE_NAME], server)
    port = _bind(server, listen, tls)
    for name in names:
        await health_servicer.set(name, _health_status(True))
    await server.start()
    return RunningServer(f"{listen.rpartition(':')[0]}:{port}", InProcessChannel(in_process), server, health_servicer)


def _bind(server: grpc.aio.Server, listen: str, tls: ServerTls | None) -> int:
    check_free(listen)  # once more, and first: gRPC complains on stderr
    try:
        if tls is None:
            port = server.add_insecure_port(listen)
        else:
            port = server.add_secure_port(listen, tls.credentials())
    except RuntimeError:
        port = 0
    if port == 0:
        raise CannotListen(listen)
    return port


def _health_status(serving: bool) -> health_pb2.HealthCheckResponse.ServingStatus:
    status = health_pb2.HealthCheckResponse
    return status.SERVING if serving else status.NOT_SERVING


async def serve(
    name: str,
    mounts: Sequence[Mount],
    settings: RpcServerSettings,
    *,
    registry: CollectorRegistry | None = None,
    on_drain: Callable[[], None] = lambda: None,
    interrupt: Callable[[], None] | None = None,
    healthy: Callable[[], bool] = lambda: True,
    beside: Callable[[RunningServer], AbstractAsyncContextManager[object]] = nullcontext,
) -> None:
    """Serve `mounts` until a signal; returns when the last call has ended. Raises CannotListen, CannotStart.

    `name` is in the line "<name> listening on host:port" on stderr. `on_drain` and `interrupt` run on the event loop,
    once. `healthy` is called every second, on the event loop: while it is False, health is NOT_SERVING for the whole
    server and each of `mounts`, and calls are still answered. `beside` is another server in this process: it begins
    before this server is ready, and ends before this server's calls get their grace period.
    """
    registry = registry or CollectorRegistry()
    metrics = Metrics(registry)
    metrics.process(name)
    host, tls = settings.listen.rpartition(":")[0].strip("[]"), settings.server_tls
    endpoint = metrics_endpoint(registry, host, settings.metrics_port, tls, settings.served_names)
    local = new_token() if settings.principals is None else None
    with received_signals() as received, endpoint as metrics_port:
        access = access_of(settings, local)
        server = await start_server(mounts, settings.listen, registry, access, tls, settings.limits)
        async with AsyncExitStack() as stopping:
            stopping.push_async_callback(server.stop, None)
            reporting = _reporting(server, mounts, healthy, metrics.gauge("kolm_serving"))
            left = token_left(server.address, local)
            gc.freeze()  # objects of the start stay: looking through them for garbage stops every thread for 50 ms
            gc.enable()
            async with beside(server):
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
    # Ended below: gRPC has crashed when its own grace period ran out while another call stopped the server.
    stopping = asyncio.ensure_future(server.stop(_LONGEST_SECONDS))
    impatience = asyncio.ensure_future(received.get())
    await asyncio.wait({stopping, impatience}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
    impatience.cancel()
    if interrupt is not None and not stopping.done():
        interrupt()
        await asyncio.wait({stopping}, timeout=LAST_WORDS_SECONDS)
    if not stopping.done():
        await server.stop(None)
    await stopping


@contextmanager
def _reporting(
    server: RunningServer, mounts: Sequence[Mount], healthy: Callable[[], bool], serving: Gauge
) -> Iterator[None]:
    """A block in which health and `serving` follow `healthy`."""
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


@contextmanager
def received_signals() -> Iterator[asyncio.Queue[signal.Signals]]:
    """A block in which signals become items of a queue; none is lost."""
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
    """A file with `host:port`, complete or missing, while the server takes calls. A disk that does not take it keeps no
    server from its work.
    """
    if path is None:
        yield
        return
    try:
        keep_durably(path, f"{address}\n".encode(), folder_mode=0o777)
    except OSError as error:
        _log.error("serving on %s without --ready-file %s, which cannot be written: %s", address, path, error)
        with suppress(OSError):
            path.unlink()
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()

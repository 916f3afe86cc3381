"""A gRPC server with the interceptor, health, reflection and limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

from kolm.telemetry.v1.telemetry_pb2_grpc import add_TelemetryServiceServicer_to_server
from services.runtime.access.access import Access
from services.runtime.calls.interceptor import CallInterceptor
from services.runtime.calls.limits import CallLimits, Limits
from services.runtime.listening import CannotListen, check_free
from services.runtime.telemetry import tracing
from services.runtime.telemetry.metrics import CallMetrics
from services.runtime.telemetry.tracing import TelemetryServicer
from services.runtime.tls import ServerTls

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
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)


@dataclass(frozen=True, slots=True)
class Mount:
    """One gRPC service: its full name (`kolm.ledger.v1.LedgerService`) and how it gets onto a server."""

    service: str
    add: Callable[[grpc.aio.Server], None]


@dataclass(slots=True)
class RunningServer:
    """A server that accepts calls at `address` (`host:port`, with the port that was bound)."""

    address: str
    _server: grpc.aio.Server
    _health: health.aio.HealthServicer

    async def drain(self) -> None:
        """From here on health says NOT_SERVING for everything; calls are still answered."""
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
    interceptor = CallInterceptor(CallMetrics(registry), access or Access(), CallLimits(limits))
    server = grpc.aio.server(interceptors=[interceptor], options=(*_OPTIONS, *_limiting(limits)))
    for mount in mounts:
        mount.add(server)
    add_TelemetryServiceServicer_to_server(TelemetryServicer(registry), server)
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    names = ["", health.SERVICE_NAME, tracing.SERVICE, *(mount.service for mount in mounts)]
    reflection.enable_server_reflection([*names[1:], reflection.SERVICE_NAME], server)
    port = _bind(server, listen, tls)
    for name in names:
        await health_servicer.set(name, _health_status(True))
    await server.start()
    return RunningServer(f"{listen.rpartition(':')[0]}:{port}", server, health_servicer)


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

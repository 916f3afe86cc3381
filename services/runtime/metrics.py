"""Prometheus metrics of a server, on a registry of its own and, if a port is set, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server

from services.runtime.listening import CannotListen

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class CallMetrics:
    """Calls by method and status code, and how long they took.

    kolm_rpc_calls_total{service,method,code}, kolm_rpc_seconds{service,method}.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter("kolm_rpc_calls", "Finished calls.", ("service", "method", "code"), registry=registry)
        self._seconds = Histogram(
            "kolm_rpc_seconds",
            "Time from the first byte of a call to its status.",
            ("service", "method"),
            buckets=_SECONDS,
            registry=registry,
        )

    def observe(self, path: str, code: grpc.StatusCode, seconds: float) -> None:
        """One finished call; `path` is gRPC's `/package.Service/Method`."""
        service, _, method = path.removeprefix("/").partition("/")
        self._calls.labels(service, method, code.name).inc()
        self._seconds.labels(service, method).observe(seconds)


@contextmanager
def metrics_endpoint(registry: CollectorRegistry, host: str, port: int | None) -> Iterator[int | None]:
    """In this block serve `registry` at http://host:port/metrics; yields the bound port. Port None serves nothing.

    Raises CannotListen.
    """
    if port is None:
        yield None
        return
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError:
        raise CannotListen(f"{host}:{port}") from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

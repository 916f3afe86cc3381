"""Spans of a server's calls and their export by OTLP, and TelemetryService, the metrics over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from kolm.telemetry.v1 import telemetry_pb2 as pb
from kolm.telemetry.v1.telemetry_pb2_grpc import TelemetryServiceServicer
from services.client.connection import tracing


class CallSpan:
    """The current span of the task from here to `end`, below the caller's. Nothing where the program does not trace."""

    def __init__(self, path: str, metadata: Iterable[tuple[str, str | bytes]], request_id: str) -> None:
        """`path` is gRPC's `/package.Service/Method`."""
        self._span: Any = None
        if not tracing.in_use():
            return
        from opentelemetry import context, trace

        carrier = {key: value for key, value in metadata if isinstance(value, str)}
        attributes = tracing.rpc_attributes(path) | {"kolm.request_id": request_id}
        self._span = tracing.begun(path.removeprefix("/"), "SERVER", tracing.extracted(carrier), **attributes)
        self._token = context.attach(trace.set_span_in_context(self._span))

    def end(self, code: grpc.StatusCode) -> None:
        """The call has ended like this. From the task that began it."""
        if self._span is not None:
            from opentelemetry import context

            context.detach(self._token)
            tracing.end(self._span, code)


class TracingNotInstalled(Exception):
    """Traces were asked for, and the extra that sends them is not installed."""

    def __init__(self) -> None:
        super().__init__("--traces: OpenTelemetry, of the extra otel, is not installed")


@contextmanager
def exported_traces(service: str, endpoint: str | None) -> Iterator[None]:
    """In this block spans of `service` go to `endpoint` (`http://collector:4317`); at its end the last ones do.

    None traces nothing. OpenTelemetry's own variables set sampling and limits. Raises TracingNotInstalled.
    """
    if endpoint is None:
        yield
        return
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError:
        raise TracingNotInstalled from None
    provider = TracerProvider(resource=Resource.create({"service.name": f"kolm-{service}"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


SERVICE = "kolm.telemetry.v1.TelemetryService"


class TelemetryServicer(TelemetryServiceServicer):
    """Of one registry. Its metrics are asked on a thread, as for a scrape."""

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

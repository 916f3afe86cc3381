"""Sending spans of this process to a collector, by OTLP over gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class TracingNotInstalled(Exception):
    """Traces were asked for, and the extra that sends them is not installed."""

    def __init__(self) -> None:
        super().__init__("--traces: OpenTelemetry is not installed: pip install 'kolm-serve[otel]'")


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

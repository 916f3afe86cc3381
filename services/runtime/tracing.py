"""Spans of OpenTelemetry: finished ones, sent to the collector that OpenTelemetry's own variables name."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from services.runtime.metrics import kolm_version

_log = logging.getLogger(__name__)

TRACE_KEYS = ("traceparent", "tracestate")
"""Headers, and keys of metadata, of the W3C's trace context."""
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Variables that turn spans on."""
_LAST, _LAST_SECONDS = "last spans", 2.0  # the thread that sends them when a process stops, and its time

Attributes: TypeAlias = Mapping[str, str | bool | int | float | Sequence[str]]

current_trace: ContextVar[Mapping[str, str]] = ContextVar("current_trace", default=MappingProxyType({}))
"""The trace context that the caller of this task's call sent, by key."""


def trace_from(metadata: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
    """The trace context in a call's metadata, unchecked."""
    return {key: value for key, value in metadata if key in TRACE_KEYS and isinstance(value, str)}


@dataclass(frozen=True, slots=True)
class Span:
    """A finished span. `started` and `ended` are nanoseconds of Unix time; `outside`: another process did the work;
    `error`: the reason of a failure.
    """

    name: str
    started: int
    ended: int
    attributes: Attributes
    outside: bool = False
    error: str | None = None
    parent: Mapping[str, str] = field(default_factory=current_trace.get)


SendSpan: TypeAlias = Callable[[Span], None]


@contextmanager
def sent_spans(service: str) -> Iterator[SendSpan | None]:
    """Gives the function that sends spans in the background, from any thread; None if no variable turns them on.

    OpenTelemetry's variables configure the resource, the sampler, the batches and OTLP over HTTP. A collector that is
    away costs spans, never a request.
    """
    name = next((each for each in ENDPOINTS if os.environ.get(each)), None)
    if name is None:
        yield None
        return
    try:
        from opentelemetry.context import Context
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ModuleNotFoundError as error:
        _log.warning("sending no spans, despite %s: install %s, of the extra otel of kolm-serve", name, error.name)
        yield None
        return
    resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME") or f"kolm-{service}"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracer, trace_context = provider.get_tracer("kolm", kolm_version()), TraceContextTextMapPropagator()

    def send(span: Span) -> None:
        kind = SpanKind.CLIENT if span.outside else SpanKind.INTERNAL
        parent = trace_context.extract(span.parent, Context())
        made = tracer.start_span(span.name, parent, kind, span.attributes, start_time=span.started)
        if span.error is not None:
            made.set_attribute("error.type", span.error)
            made.set_status(StatusCode.ERROR)
        made.end(span.ended)

    try:
        yield send
    finally:
        # A silent collector would delay the end of the process.
        ending = threading.Thread(target=provider.shutdown, name=_LAST, daemon=True)
        ending.start()
        ending.join(_LAST_SECONDS)

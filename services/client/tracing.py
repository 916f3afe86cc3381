"""Spans by OpenTelemetry, in a program that has imported its API; in every other, nothing. Their export by OTLP.

W3C Trace Context travels as gRPC metadata. Names follow the semantic conventions for RPC. Spans hold no text.
opentelemetry-instrumentation-grpc cannot stand here (0.66b2): the span of a stream that its reader closes never ends.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanKind


Metadata = tuple[tuple[str, str | bytes], ...]
Attributes = Mapping[str, str | int | float | bool]

TRACEPARENT = "traceparent"


def in_use() -> bool:
    """Whether this program has imported OpenTelemetry's API."""
    return "opentelemetry.trace" in sys.modules


def traceparent() -> str:
    """The span that this task or thread is in, as W3C Trace Context names it; empty outside of any."""
    return _injected().get(TRACEPARENT, "") if in_use() else ""


@contextmanager
def span(name: str, attributes: Attributes, parent: str = "") -> Iterator[Any]:
    """A span around this block, below the one that `parent` (a traceparent) names, else below the current one.

    Yields None where nothing is traced.
    """
    if not in_use():
        yield None
        return
    from opentelemetry import trace

    context = extracted({TRACEPARENT: parent}) if parent else None
    with trace.get_tracer("kolm").start_as_current_span(name, context=context, attributes=dict(attributes)) as current:
        yield current


def extracted(carrier: Mapping[str, str]) -> Any:
    """The context that a caller's headers name; the current one where they name none or are no trace context."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(carrier)


def _injected() -> dict[str, str]:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier


def begun(name: str, kind: str, context: Any = None, **attributes: str) -> Span:
    """A span that is not the current one; `kind` is a name of SpanKind."""
    from opentelemetry import trace

    kinds: type[SpanKind] = trace.SpanKind
    return trace.get_tracer("kolm").start_span(name, context=context, kind=kinds[kind], attributes=attributes)


def rpc_attributes(path: str) -> dict[str, str]:
    """A span's attributes for gRPC's `/package.Service/Method`."""
    service, _, method = path.removeprefix("/").partition("/")
    return {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}


def end(current: Span, code: grpc.StatusCode) -> None:
    """End the span of a call with its status."""
    from opentelemetry.trace import StatusCode

    current.set_attribute("rpc.grpc.status_code", code.value[0])
    if code is not grpc.StatusCode.OK:
        current.set_status(StatusCode.ERROR, code.name)
    current.end()


def outgoing(current: Span, metadata: Metadata | None) -> Metadata:
    """The metadata of a call, with the span that it belongs to."""
    from opentelemetry import context, trace

    token = context.attach(trace.set_span_in_context(current))
    try:
        return (*(metadata or ()), *_injected().items())
    finally:
        context.detach(token)


_Channel = TypeVar("_Channel", bound="grpc.Channel | grpc.aio.Channel")


def traced(channel: _Channel) -> _Channel:
    """`channel`, with a span for each call where the program uses OpenTelemetry."""
    return _TracedChannel(channel) if in_use() else channel  # type: ignore[return-value]


_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class _TracedChannel:
    """Everything but the four kinds of call is the channel's own."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        own = getattr(self._channel, name)
        if name not in _KINDS:
            return own
        return lambda method, *arguments, **named: _TracedMethod(method, own(method, *arguments, **named))


class _TracedMethod:
    def __init__(self, method: str, call: Any) -> None:
        self._method = method
        self._call = call

    def __call__(self, *arguments: Any, metadata: Any = None, **named: Any) -> Any:
        return self._made(self._call, arguments, metadata, named)

    def __getattr__(self, name: str) -> Any:
        """`with_call` and `future`."""
        own = getattr(self._call, name)
        return lambda *arguments, metadata=None, **named: self._made(own, arguments, metadata, named)

    def _made(self, call: Callable[..., Any], arguments: Any, metadata: Any, named: Any) -> Any:
        """The call's answer. Its span ends with the status: here, or where it is a stream or a future, later."""
        span = begun(self._method.removeprefix("/"), "CLIENT", **rpc_attributes(self._method))
        try:
            answer = call(*arguments, metadata=outgoing(span, metadata), **named)
        except grpc.RpcError as error:
            end(span, error.code())
            raise
        if hasattr(answer, "add_done_callback"):
            answer.add_done_callback(lambda done: _end_with(span, done))
        else:
            end(span, grpc.StatusCode.OK)
        return answer


def _end_with(span: Any, call: Any) -> None:
    code = call.code()
    if not inspect.isawaitable(code):
        end(span, code)
        return

    async def ended() -> None:
        end(span, await code)

    asyncio.get_running_loop().create_task(ended())


class CallSpan:
    """The current span of the task from here to `end`, below the caller's. Nothing where the program does not trace."""

    def __init__(self, path: str, metadata: Iterable[tuple[str, str | bytes]], request_id: str) -> None:
        """`path` is gRPC's `/package.Service/Method`."""
        self._span: Any = None
        if not in_use():
            return
        from opentelemetry import context, trace

        carrier = {key: value for key, value in metadata if isinstance(value, str)}
        attributes = rpc_attributes(path) | {"kolm.request_id": request_id}
        self._span = begun(path.removeprefix("/"), "SERVER", extracted(carrier), **attributes)
        self._token = context.attach(trace.set_span_in_context(self._span))

    def end(self, code: grpc.StatusCode) -> None:
        """The call has ended like this. From the task that began it."""
        if self._span is not None:
            from opentelemetry import context

            context.detach(self._token)
            end(self._span, code)


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

"""A collector of OpenTelemetry's spans, by OTLP over HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.fakes.http_server import QuietHandler, handled_by


@dataclass(frozen=True)
class CollectedSpan:
    """Identifiers are hexadecimal, `seconds` between start and end."""

    service: str
    name: str
    kind: int
    trace_id: str
    parent_id: str
    seconds: float
    is_error: bool
    attributes: dict[str, Any]


@dataclass
class Collector:
    """`spans` in the order in which they came."""

    spans: list[CollectedSpan] = field(default_factory=list)

    def add(self, body: bytes) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _values(resource.resource.attributes)["service.name"]
            for span in (each for scope in resource.scope_spans for each in scope.spans):
                self.spans.append(
                    CollectedSpan(
                        service,
                        span.name,
                        span.kind,
                        span.trace_id.hex(),
                        span.parent_span_id.hex(),
                        (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                        span.status.code == span.status.STATUS_CODE_ERROR,
                        _values(span.attributes),
                    )
                )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@contextmanager
def collecting(patch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector to which all spans of services that start inside of the block go, once the services have stopped."""
    collector = Collector()

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            collector.add(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

    with handled_by(Handler) as port:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        yield collector

"""Spans of a process reach a collector, and a process without the extra says what to install."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from services.client.channel import Connection

SERVICE = [sys.executable, "-m", "tests.integration.runtime.scripted", "--listen", "127.0.0.1:0"]


class Collector(TraceServiceServicer):
    """Keeps the names of spans, each with its service's."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, str]] = []

    def Export(self, request: pb.ExportTraceServiceRequest, context: grpc.ServicerContext) -> object:
        for resource in request.resource_spans:
            names = [each.value.string_value for each in resource.resource.attributes if each.key == "service.name"]
            spans = [span for scope in resource.scope_spans for span in scope.spans]
            self.spans += [(names[0], span.name) for span in spans]
        return pb.ExportTraceServiceResponse()


@pytest.fixture
def collector() -> Iterator[tuple[Collector, str]]:
    kept, server = Collector(), grpc.server(ThreadPoolExecutor(1))
    add_TraceServiceServicer_to_server(kept, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield kept, f"http://127.0.0.1:{port}"
    server.stop(None)


def test_the_spans_of_a_process_are_with_the_collector_when_it_has_stopped(collector: tuple[Collector, str]) -> None:
    kept, endpoint = collector
    with subprocess.Popen([*SERVICE, "--traces", endpoint], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "listening on" in line)
        connection = Connection(line.rsplit(" ", 1)[1].strip(), wait=60)
        assert connection.serving()
        connection.close()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert ("kolm-stubborn", "grpc.health.v1.Health/Check") in kept.spans, kept.spans


def test_without_the_extra_a_process_says_what_to_install() -> None:
    hide = "import sys, runpy; sys.modules['opentelemetry'] = None; sys.argv = sys.argv[1:]; "
    run = "runpy.run_module('tests.integration.runtime.scripted', run_name='__main__', alter_sys=True)"
    command = [sys.executable, "-c", hide + run, "x", "--listen", "127.0.0.1:0", "--traces", "http://127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "extra otel" in done.stderr) == (1, True), done.stderr

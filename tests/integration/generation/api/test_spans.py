"""Spans of requests, in a collector."""

import json
import socket
import sys
import threading
from collections.abc import Iterator

import pytest

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import speculation_pb2
from services.runtime import tracing
from services.runtime.tracing import ENDPOINTS, sent_spans
from tests.fakes.collector import CollectedSpan, Collector, collecting
from tests.integration.generation.deployment import Deployment, asking
from tests.integration.http.front import fronting

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = (("traceparent", f"00-{TRACE}-{PARENT}-01"),)
INTERNAL = 1  # SpanKind
INLINE = speculation_pb2.VERIFY_MODE_INLINE


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting(monkeypatch) as collector:
        yield collector


async def spans_of(deployment: Deployment, collector: Collector) -> list[CollectedSpan]:
    await deployment.stop_generation()
    return collector.spans


async def test_a_request_s_span_has_the_names_of_the_conventions_and_its_receipts_verdicts_and_method(
    deployment: Deployment, collector: Collector
) -> None:
    stub = await deployment.start_generation(model_name="tiny")
    asked = asking(
        max_tokens=5, n=2, seed=7, temperature=0.5, top_k=40, stop=["no such"], method="lookahead", verify=INLINE,
        request_id="mine",
    )  # fmt: skip
    answer = await stub.Generate(asked, metadata=CONTEXT)
    (span,) = await spans_of(deployment, collector)
    assert (span.service, span.name, span.kind) == ("kolm-generation", "text_completion tiny", INTERNAL)
    assert (span.trace_id, span.parent_id, span.is_error, 0 < span.seconds < 240) == (TRACE, PARENT, False, True)
    assert span.attributes == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "kolm",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stop_sequences": ["no such"],
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_k": 40,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.response.finish_reasons": ["length", "length"],
        "gen_ai.response.id": "mine",
        "gen_ai.response.model": "tiny",
        "gen_ai.usage.cache_read.input_tokens": answer.usage.cached_prompt_tokens,
        "gen_ai.usage.input_tokens": answer.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": 10,
        "kolm.receipt.ids": [each.receipt.receipt_id for each in answer.choices],
        "kolm.receipt.verdicts": ["EXACT", "EXACT"],
        "kolm.method": "lookahead",
        "kolm.requested_method": "lookahead",
    }


async def test_a_stream_s_span_has_the_time_to_its_first_tokens(deployment: Deployment, collector: Collector) -> None:
    stub = await deployment.start_generation()
    request = pb.GenerateStreamRequest(request=asking(max_tokens=3, seed=2**64 - 1))
    events = [event async for event in stub.GenerateStream(request)]
    (span,) = await spans_of(deployment, collector)
    assert span.attributes["gen_ai.request.stream"] is True
    assert 0 < span.attributes["gen_ai.response.time_to_first_chunk"] <= span.seconds
    assert span.attributes["kolm.receipt.ids"] == [each.finished.receipt.receipt_id for each in events][-1:]
    assert not {"gen_ai.request.seed", "kolm.receipt.verdicts"} & set(span.attributes)
    assert span.parent_id == ""


@pytest.mark.parametrize(
    ("sent", "passed"),
    [(CONTEXT[0][1], True), ("not one", False), ("\xe4" * 55, False)],
    ids=["valid", "invalid", "not ASCII"],
)
async def test_a_caller_s_trace_goes_through_the_http_front(
    deployment: Deployment, collector: Collector, sent: str, passed: bool
) -> None:
    await deployment.start_generation(model_name="tiny")
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 2}).encode()
    headers = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close"
    async with fronting(deployment.generation_address) as front:
        reader, writer = await front.raw(
            f"POST /v1/chat/completions HTTP/1.1\r\ntraceparent: {sent}\r\n{headers}", body
        )
        answer = json.loads((await reader.read()).partition(b"\r\n\r\n")[2])
        writer.close()
    (span,) = await spans_of(deployment, collector)
    (receipt,) = answer["kolm"]["receipts"]
    assert span.attributes["kolm.receipt.ids"] == [receipt["receipt_id"]]
    assert (span.attributes["gen_ai.operation.name"], span.trace_id == TRACE) == ("chat", passed)


async def test_without_a_collector_requests_are_served_and_the_stop_does_not_wait(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "_LAST_SECONDS", 0.01)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv(ENDPOINTS[0], f"http://127.0.0.1:{silent.getsockname()[1]}")
        stub = await deployment.start_generation()
        assert (await stub.Generate(asking(max_tokens=2))).choices
        await deployment.stop_generation()
        assert tracing._LAST in {each.name for each in threading.enumerate()}


async def test_without_the_extra_there_are_no_spans(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENDPOINTS[1], "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with sent_spans("generation") as send:
        assert send is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]

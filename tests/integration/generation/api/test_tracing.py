"""One trace from a client over the generation service to the ledger, kept in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.client import AsyncRuntime, LedgerClient, Request, Runtime, SamplingParams
from services.client.errors import NotFound
from tests.integration.generation.deployment import Deployment

PROMPT = "The ledger keeps a secret"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The spans of every party: they all run in this process."""
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield kept
    provider.shutdown()


def ancestors(spans: dict[int, ReadableSpan], name: str) -> list[tuple[str, str]]:
    """The span of that name and those above it, each with its kind."""
    (found,) = [span for span in spans.values() if span.name == name]
    line = [found]
    while line[-1].parent is not None:
        line.append(spans[line[-1].parent.span_id])
    return [(span.name, span.kind.name) for span in line]


WAY = [
    ("kolm.ledger.append", "INTERNAL"),
    ("kolm.receipt", "INTERNAL"),
    ("kolm.generate", "INTERNAL"),
]


def call(method: str) -> list[tuple[str, str]]:
    name = f"kolm.generation.v1.GenerationService/{method}"
    return [(name, "SERVER"), (name, "CLIENT")]


async def test_a_request_is_one_trace_from_the_client_to_the_ledger(
    deployment: Deployment, exporter: InMemorySpanExporter
) -> None:
    await deployment.start_generation()

    def ask() -> None:
        with Runtime.connect(deployment.generation_address) as runtime:
            runtime.serve(Request(prompt=PROMPT, sampling=SamplingParams(max_tokens=4)))

    await asyncio.to_thread(ask)
    await deployment.stop_generation()  # the answer may have come before the last spans ended
    spans = {span.context.span_id: span for span in exporter.get_finished_spans() if span.context}
    assert ancestors(spans, "kolm.ledger.append") == [*WAY, *call("Generate")]
    (appended,) = [span for span in spans.values() if span.name == "kolm.ledger.append"]
    assert dict(appended.attributes or {})["kolm.ledger.index"] == 1
    for span in spans.values():
        assert PROMPT not in span.to_json()


async def test_a_stream_on_an_event_loop_is_one_trace_too(
    deployment: Deployment, exporter: InMemorySpanExporter
) -> None:
    await deployment.start_generation()
    async with (
        AsyncRuntime.connect(deployment.generation_address) as runtime,
        runtime.stream(Request(prompt=PROMPT, sampling=SamplingParams(max_tokens=4))) as events,
    ):
        async for _ in events:
            pass
    await deployment.stop_generation()
    spans = {span.context.span_id: span for span in exporter.get_finished_spans() if span.context}
    assert ancestors(spans, "kolm.ledger.append") == [*WAY, *call("GenerateStream")]


async def test_a_failed_call_ends_its_spans_with_its_status(
    deployment: Deployment, exporter: InMemorySpanExporter
) -> None:
    def ask() -> None:
        with LedgerClient.connect(deployment.ledger_address) as ledger, pytest.raises(NotFound):
            ledger.receipt("01980000-0000-7000-8000-000000000000")

    await asyncio.to_thread(ask)
    await deployment.stop_ledger()
    ended = [(span.kind.name, span.status.description) for span in exporter.get_finished_spans()]
    assert ended == [("SERVER", "NOT_FOUND"), ("CLIENT", "NOT_FOUND")]

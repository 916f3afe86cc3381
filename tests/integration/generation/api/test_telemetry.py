"""Metrics and traces of a generation server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from kolm.generation.v1 import generation_pb2 as pb
from services.client import AsyncRuntime, LedgerClient, Request, Runtime, SamplingParams
from services.client.errors import NotFound
from tests.integration.generation.deployment import Deployment, asking, until
from tests.serving import exported, listed

WITNESSES = {"kolm_ledger_witness_lag_entries", "kolm_ledger_witness_silent"}  # where a policy names some


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


async def test_counts_are_those_that_responses_name_and_the_list_names_them_all(deployment: Deployment) -> None:
    stub = await deployment.start_generation(model_name="tiny")
    registry = deployment.metrics["generation"]
    answer = await stub.Generate(asking(max_tokens=40, method="lookahead"))
    events = [event async for event in stub.GenerateStream(_streamed(max_tokens=8, method="off"))]
    chunks = sum(event.WhichOneof("event") == "chunk" for event in events)
    (counts,) = [choice.metrics for choice in answer.choices]
    of_model = {"model_name": "tiny"}
    assert value(registry, "vllm:spec_decode_num_drafts_total", **of_model) == counts.num_drafts > 0
    assert value(registry, "vllm:spec_decode_num_draft_tokens_total", **of_model) == counts.num_draft_tokens
    assert value(registry, "vllm:spec_decode_num_accepted_tokens_total", **of_model) == counts.num_accepted_tokens
    per_position = [
        value(registry, "vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(depth), **of_model)
        for depth in range(len(counts.num_accepted_tokens_per_pos))
    ]
    assert per_position == list(counts.num_accepted_tokens_per_pos)
    assert value(registry, "vllm:generation_tokens_total", **of_model) == 48
    assert value(registry, "vllm:prompt_tokens_total", **of_model) == 2 * answer.usage.prompt_tokens
    assert value(registry, "vllm:request_success_total", finished_reason="length", **of_model) == 2
    assert value(registry, "vllm:time_to_first_token_seconds_count", **of_model) == 2
    loaded = {"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""}
    assert (value(registry, "vllm:lora_requests_info", **loaded) or 0) > 0
    assert (value(registry, "vllm:inter_token_latency_seconds_count", **of_model) or 0) >= chunks - 1 > 0

    async def idle() -> bool:  # the engine forgets a request a moment after its answer
        return value(registry, "vllm:num_requests_running", **of_model) == 0

    await until(idle)
    assert value(registry, "kolm_outbox_pending") == 0
    assert exported(registry) == listed("generation", "rpc") - {"kolm_serving"}


async def test_the_ledger_exports_what_its_writes_took(deployment: Deployment) -> None:
    stub = await deployment.start_generation()
    await stub.Generate(asking(max_tokens=4))
    registry = deployment.metrics["ledger"]
    entries = value(registry, "kolm_ledger_entries")
    assert value(registry, "kolm_ledger_batch_entries_sum") == entries == 2  # the key and the receipt
    batches = value(registry, "kolm_ledger_batch_entries_count")
    for step in ("commit", "guard", "sign"):
        assert value(registry, f"kolm_ledger_{step}_seconds_count") == batches
    assert value(registry, "kolm_ledger_takes_entries") == 1
    assert (value(registry, "kolm_ledger_checkpoint_age_seconds") or 0.0) > 0.0
    assert exported(registry) == listed("ledger", "rpc") - WITNESSES - {"kolm_serving"}


def _streamed(**members: object) -> pb.GenerateStreamRequest:
    return pb.GenerateStreamRequest(request=asking(**members))


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


WAY = [("kolm.ledger.append", "INTERNAL"), ("kolm.receipt", "INTERNAL"), ("kolm.generate", "INTERNAL")]


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

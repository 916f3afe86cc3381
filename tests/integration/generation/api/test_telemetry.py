"""Metrics of a generation server."""

from prometheus_client import CollectorRegistry

from kolm.generation.v1 import generation_pb2 as pb
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

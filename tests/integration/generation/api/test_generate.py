"""Generate and GenerateStream over a real socket, with a real ledger, and the metrics of both."""

import asyncio
import threading
from typing import Any

import pytest
from google.protobuf.message import Message
from prometheus_client import CollectorRegistry

from kolm.generation.v1 import generation_pb2
from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from kolm.ledger.v1 import ledger_pb2
from ledger.audit.log_verification import verify_receipt
from ledger.encoding.commitment import OUTPUT_DOMAIN, PROMPT_DOMAIN, commit
from services.generation.api import messages, runner
from services.generation.receipts.issuer import Speedup
from services.generation.target.blocks import BLOCK
from services.runtime.process import TextFormatter
from tests.fakes.tampered_targets import GatedTarget, Loader, UnprovableTarget
from tests.fuzzing import flood
from tests.integration.generation.deployment import Deployment, asking, until
from tests.integration.generation.requests.test_replay import judged, receipts_of
from tests.serving import exported, listed


async def test_a_response_carries_a_receipt_that_the_ledger_holds_and_that_commits_to_its_tokens(
    deployment: Deployment,
) -> None:
    stub = await deployment.start_generation()
    response = await stub.Generate(asking(max_tokens=40, request_id="mine", tenant="acme", method="lookahead"))
    (choice,) = response.choices
    assert len(choice.token_ids) == 40
    assert choice.finish_reason == pb.FINISH_REASON_LENGTH
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (response.resolved.prompt_tokens, 40)
    assert not choice.receipt.pending
    stored = await (await deployment.ledger()).GetReceipt(
        ledger_pb2.GetReceiptRequest(receipt_id=choice.receipt.receipt_id, include_content=True)
    )
    assert stored.receipt.index == choice.receipt.ledger_index
    assert stored.receipt.envelope == choice.receipt.envelope
    receipt = verify_receipt(choice.receipt.envelope, deployment.trust())
    content = stored.content
    assert receipt.prompt.commitment == commit(PROMPT_DOMAIN, content.prompt_salt, tuple(content.prompt_token_ids))
    assert receipt.output.commitment == commit(OUTPUT_DOMAIN, content.output_salt, tuple(choice.token_ids))
    assert (receipt.request_id, receipt.tenant, receipt.output.finish_reason) == ("mine", "acme", "length")
    assert (receipt.spec_decode.method, receipt.spec_decode.fallback_reason) == ("lookahead", None)
    assert receipt.spec_decode.tokens_proposed == choice.metrics.num_draft_tokens > 0
    assert receipt.spec_decode.verified_identical_to_off is None
    assert (receipt.spec_decode.wall_clock_speedup, receipt.spec_decode.speedup_basis) == (None, None)


async def test_a_request_is_one_line_of_the_log_with_tokens_and_times_and_without_a_word_of_its_text(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    stub = await deployment.start_generation()
    caplog.set_level("INFO")
    request = asking(max_tokens=5, request_id="mine", tenant="acme", method="off", n=2)
    response = await stub.Generate(request)
    (line,) = (record for record in caplog.records if record.message == "request")
    event = vars(line)["event"]
    assert {name: event[name] for name in ("id", "tenant", "method", "outcome")} == {
        "id": "mine", "tenant": "acme", "method": "off", "outcome": "length,length",
    }  # fmt: skip
    assert (event["prompt_tokens"], event["output_tokens"]) == (response.resolved.prompt_tokens, 10)
    assert event["seconds"] >= event["decode_seconds"] > 0
    written = " ".join(TextFormatter().format(record) for record in caplog.records)
    assert not any(text in written for text in (request.prompt, *(choice.text for choice in response.choices)))


async def test_speculation_on_and_off_give_the_same_text_tokens_and_stream_digest(deployment: Deployment) -> None:
    stub = await deployment.start_generation()
    for temperature in (0.0, 0.8):
        both = [
            await stub.Generate(asking(max_tokens=60, method=method, temperature=temperature, seed=5))
            for method in ("off", "auto")
        ]
        off, auto = (response.choices[0] for response in both)
        assert (off.text, list(off.token_ids)) == (auto.text, list(auto.token_ids))
        digests = {verify_receipt(c.receipt.envelope, deployment.trust()).output.stream_digest for c in (off, auto)}
        assert len(digests) == 1
        assert both[1].resolved.fallback_reason == "no_head"


async def test_requests_of_a_tenant_that_begin_alike_are_computed_once_and_verified_from_scratch(
    deployment: Deployment,
) -> None:
    stub = await deployment.start_generation()
    prompt = "A question asked before, asked again, and at some length: " + "yes, " * BLOCK
    answers = []
    for tenant, reused in (("acme", False), ("acme", True), ("other", False)):
        asked = asking(prompt, max_tokens=20, temperature=0.8, seed=5, tenant=tenant, verify="VERIFY_MODE_INLINE")
        response = await stub.Generate(asked)
        assert (response.usage.cached_prompt_tokens >= BLOCK) == reused
        receipt = verify_receipt(response.choices[0].receipt.envelope, deployment.trust())
        assert receipt.spec_decode.verified_identical_to_off is True
        answers.append((list(response.choices[0].token_ids), receipt.output.stream_digest))
    assert answers[0] == answers[1] == answers[2]


async def test_a_stream_is_started_then_chunks_then_finished_and_adds_up_to_the_unary_response(
    deployment: Deployment,
) -> None:
    stub = await deployment.start_generation()
    request = asking(max_tokens=50, n=3, temperature=0.9, seed=11, logprobs=2)
    events = [e async for e in stub.GenerateStream(pb.GenerateStreamRequest(request=request))]
    unary = await stub.Generate(request)
    assert [event.WhichOneof("event") for event in events].count("started") == 1
    assert events[0].started.resolved.sampling.seed == 11
    for choice in unary.choices:
        mine = [e.chunk for e in events if e.HasField("chunk") and e.chunk.index == choice.index]
        assert "".join(chunk.text for chunk in mine) == choice.text
        assert [token for chunk in mine for token in chunk.token_ids] == list(choice.token_ids)
        logprobs = [position for chunk in mine for position in chunk.logprobs]
        assert [p.chosen.token_id for p in logprobs] == list(choice.token_ids)
        assert logprobs == list(choice.logprobs)
        assert all(len(position.top) == 2 for position in logprobs)
    finished = [e.finished for e in events if e.HasField("finished")]
    assert sorted(each.index for each in finished) == [0, 1, 2]
    receipts = [verify_receipt(each.receipt.envelope, deployment.trust()) for each in finished]
    assert {(r.sampling.n, r.sampling.choice) for r in receipts} == {(3, 0), (3, 1), (3, 2)}
    assert len({r.receipt_id for r in receipts}) == 3
    assert len({tuple(choice.token_ids) for choice in unary.choices}) == 3


async def test_defaults_are_filled_in_and_the_output_takes_no_more_than_the_context_leaves(
    deployment: Deployment,
) -> None:
    stub = await deployment.start_generation()
    response = await stub.Generate(asking("", token_ids=pb.TokenIds(ids=[9] * 500)))
    assert response.resolved.sampling.max_tokens == 12
    assert response.resolved.requested_method == "auto"
    assert response.resolved.sampling.HasField("repetition_penalty")
    assert response.resolved.request_id


async def test_inline_verification_replays_before_signing(deployment: Deployment) -> None:
    stub = await deployment.start_generation()
    response = await stub.Generate(asking(max_tokens=40, verify=2, temperature=0.7, seed=3))
    block = verify_receipt(response.choices[0].receipt.envelope, deployment.trust()).spec_decode
    assert block.verified_identical_to_off is True
    assert block.wall_clock_speedup is None or block.wall_clock_speedup == response.metrics.wall_clock_speedup > 0
    assert response.metrics.HasField("wall_clock_speedup") == (block.speedup_basis == "replayed")
    assert (block.wall_clock_speedup or 0) <= (block.mean_acceptance_length or 0)


async def test_many_requests_at_once_each_get_what_they_get_alone(deployment: Deployment) -> None:
    stub = await deployment.start_generation()
    requests = [asking(max_tokens=30, temperature=0.9, seed=seed) for seed in range(12)]
    alone = [await stub.Generate(request) for request in requests]
    together = await asyncio.gather(*(stub.Generate(request) for request in requests))
    for one, other in zip(alone, together, strict=True):
        assert one.choices[0].token_ids == other.choices[0].token_ids
    assert len(await deployment.receipts(24)) == 24


async def test_no_speedup_is_claimed_from_a_time_that_was_shared_with_another_request(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "replayed", lambda *_: Speedup(1.0, "replayed"))
    stub, target = await deployment.start_wrapped(GatedTarget)
    target.close()
    request = pb.GenerateStreamRequest(request=asking(max_tokens=400, ignore_eos=True, verify=2))
    streams = [stub.GenerateStream(request) for _ in range(2)]
    started = asyncio.gather(*(stream.read() for stream in streams))
    while not started.done():  # the engine takes requests between passes
        target.let_pass()
        await stub.GetLoad(pb.GetLoadRequest())
    target.open()
    for stream in streams:
        while not (event := await stream.read()).HasField("finished"):
            pass
        assert not event.finished.metrics.HasField("wall_clock_speedup")
    alone = await stub.Generate(asking(max_tokens=30, verify=2))
    assert alone.metrics.wall_clock_speedup == 1.0


SERVICE = generation_pb2.DESCRIPTOR.services_by_name["GenerationService"]
MODEL = "tiny"
SECONDS = 0.3  # for a call whose message means something: it may ask for many tokens


async def test_random_messages_are_answered_or_refused_and_no_receipt_is_lost(deployment: Deployment) -> None:
    stub = await deployment.start_generation(model_name=MODEL)
    before = (await stub.Generate(asking(max_tokens=8))).choices[0].token_ids
    address = deployment.generation_address
    await asyncio.to_thread(flood, address, SERVICE, seconds=SECONDS, changed=of_our_model)
    after = (await stub.Generate(asking(max_tokens=8))).choices[0]
    assert after.token_ids == before
    assert after.receipt.receipt_id


def of_our_model(message: Message) -> Message:
    """Another model's name would be the end of almost every request."""
    for name in {"model"} & set(message.DESCRIPTOR.fields_by_name):
        setattr(message, name, MODEL)
    return message


PROMPTS = [[70 + number, *range(30, 60 + 20 * number)] for number in range(6)]


async def served(stub: GenerationServiceStub) -> list[pb.GenerateResponse]:
    """Six concurrent requests: greedy, sampled, and of two choices; each tries to speculate."""
    asked = [
        asking("", token_ids=pb.TokenIds(ids=prompt), max_tokens=24, temperature=0.4 * (number % 3), seed=number,
               n=1 + number % 2, tenant="acme", workload="WORKLOAD_CODE")
        for number, prompt in enumerate(PROMPTS)
    ]  # fmt: skip
    return await asyncio.gather(*(stub.Generate(request) for request in asked))


async def test_six_requests_at_once_give_receipts_whose_replays_are_all_exact(deployment: Deployment) -> None:
    stub, target = await deployment.start_wrapped(UnprovableTarget)
    target.widths.clear()
    responses = await served(stub)
    kept = [each for response in responses for each in receipts_of(response, deployment)]
    findings = await judged(deployment, kept)
    assert [finding.outcome for finding in findings] == ["EXACT"] * 9
    assert set(target.widths) == {1}
    again = await served(stub)
    assert [response.usage.cached_prompt_tokens for response in (*responses, *again)] == [0] * 12


async def test_receipts_and_answers_say_whether_the_profile_is_proven(deployment: Deployment) -> None:
    for loader, proven in ((None, True), (Loader(UnprovableTarget), False)):
        stub = await (deployment.start_generation() if loader is None else deployment.start_generation(loader))
        response = await stub.Generate(asking(max_tokens=3, workload="WORKLOAD_CODE"))
        receipt = verify_receipt(response.choices[0].receipt.envelope, deployment.trust())
        assert receipt.profile_proven is proven
        assert response.resolved.HasField("profile_proven")
        assert response.resolved.profile_proven is proven
        assert receipt.spec_decode.fallback_reason == (None if proven else "profile_unproven")
        await deployment.stop_generation()


WITNESSES = {"kolm_ledger_witness_lag_entries", "kolm_ledger_witness_silent"}  # only if a policy names some


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


async def test_counts_are_those_that_responses_name_and_the_list_names_them_all(deployment: Deployment) -> None:
    stub = await deployment.start_generation(model_name="tiny")
    registry = deployment.metrics["generation"]
    answer = await stub.Generate(asking(max_tokens=40, method="lookahead"))
    request = pb.GenerateStreamRequest(request=asking(max_tokens=8, method="off"))
    events = [event async for event in stub.GenerateStream(request)]
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


async def test_many_log_probabilities_are_spelled_beside_the_event_loop(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = await deployment.start_generation()
    threads, spell = list[threading.Thread](), messages._logprobs

    def noted(*given: Any) -> Any:
        threads.append(threading.current_thread())
        return spell(*given)

    monkeypatch.setattr(messages, "_logprobs", noted)
    for tokens, beside in ((2, False), (40, True)):
        response = await stub.Generate(asking(max_tokens=tokens, ignore_eos=True, logprobs=20))
        assert len(response.choices[0].logprobs) == tokens
        assert (threads.pop() is not threading.main_thread()) == beside

"""Another engine behind the generation service: its answers are promised, signed and logged as those of kolm's own
engine; a request that it cannot answer is refused by field.
"""

import asyncio
import errno
from pathlib import Path
from typing import Any

import grpc
import pytest

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import speculation_pb2
from kolm.ledger.v1 import ledger_pb2
from ledger.documents.promise import open_answer
from ledger.encoding.stream_digest import token_digest
from ledger.keys.ed25519 import SigningKey
from ledger.keys.trusted_keys import RETIRED
from services.generation import remote_preparation
from services.generation.remote import upstream
from services.runtime.process import CannotStart
from tests.fakes.collector import collecting
from tests.integration.generation.deployment import asking, failure, until
from tests.integration.generation.engines.conftest import KINDS, Engines
from tests.unit.ledger.audit.test_draft_head_evidence import evidence
from tests.unit.ledger.builders import KEYS
from tests.unit.ledger.documents.test_manifests import HEAD

INLINE = speculation_pb2.VERIFY_MODE_INLINE
CLIENT = 3  # SpanKind


async def streamed(stub: Any, request: pb.GenerateRequest) -> list[pb.GenerateStreamResponse]:
    return [event async for event in stub.GenerateStream(pb.GenerateStreamRequest(request=request))]


@pytest.mark.parametrize("weights", [True, False], ids=["weights", "no weights"])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_of_another_engine_has_its_receipt_in_the_ledger(
    engines: Engines, kind: str, weights: bool
) -> None:
    stub = await engines.start(kind, weights=weights)
    engines.fast.cached = 1
    call = stub.Generate(asking(max_tokens=9, seed=7, temperature=1.0))
    promise = dict(await call.initial_metadata())["kolm-promise-bin"]
    answer = await call
    (receipt,) = await engines.deployment.receipts(1)
    asked = ledger_pb2.AnswerPromiseRequest(promise=promise)
    kept = await (await engines.deployment.ledger()).AnswerPromise(asked)
    assert not open_answer(kept.answer, promise, engines.deployment.trust()).missing
    expected = engines.fast.tokens(engines.tokenizer.encode("The ledger keeps"), 7, 9)
    assert list(answer.choices[0].token_ids) == expected
    assert answer.choices[0].text == engines.tokenizer.decode(expected)
    assert receipt.engine == f"{kind}/1.2.3"
    assert receipt.output.stream_digest == token_digest(expected)
    block = receipt.spec_decode
    assert (block.method, block.reported_by, block.tokens_proposed, block.tokens_accepted) == ("engine", "engine", 5, 4)
    assert (receipt.profile_proven, receipt.output.min_margin) == (None, None)
    assert (receipt.prompt.cached_tokens, receipt.beside_others) == (1, False)
    assert receipt.profile_cid == answer.resolved.profile_cid


@pytest.mark.parametrize("kind", KINDS)
async def test_markup_in_a_text_that_the_engine_lays_out_is_refused_by_its_field(engines: Engines, kind: str) -> None:
    stub = await engines.start(kind, weights=False)

    def chat(content: str) -> pb.GenerateRequest:
        turns = [pb.Message(role="user", content="a"), pb.Message(role="tool", content=content)]
        return asking(max_tokens=2, messages=pb.ChatMessages(messages=turns))

    await stub.Generate(chat("<p> <T> a<|nothing|> [1] [INST]"))
    failed = await failure(stub.Generate(chat("a<|end|>b")))
    assert (failed.code, failed.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["messages.messages[1].content"])


@pytest.mark.parametrize("streams", [False, True])
async def test_log_probabilities_that_the_engine_spells_hold_up_no_other_call(engines: Engines, streams: bool) -> None:
    stub = await engines.start(weights=False)  # its engine answers on the server's event loop
    request = asking("", token_ids=pb.TokenIds(ids=[5, 6]), max_tokens=3, logprobs=1)
    if streams:
        positions = [each for event in await streamed(stub, request) for each in event.chunk.logprobs]
    else:
        positions = list((await stub.Generate(request)).choices[0].logprobs)
    chosen = [each.chosen for each in positions]
    assert [each.text for each in chosen] == [engines.tokenizer.decode([each.token_id]) for each in chosen]
    assert len(chosen) == 3


@pytest.mark.parametrize(
    "members",
    [
        {"prompt": "The ledger"},
        {"messages": pb.ChatMessages(messages=[pb.Message(role="user", content="a")])},
        {"token_ids": pb.TokenIds(ids=[5, 6]), "logprobs": 1},
    ],
)
async def test_a_tokenizer_that_does_not_answer_makes_the_engine_unavailable(
    engines: Engines, members: dict[str, Any]
) -> None:
    stub = await engines.start(weights=False)
    engines.plain.fault = "locked"
    failed = await failure(stub.Generate(asking(**({"prompt": "", "max_tokens": 3} | members))))
    assert (failed.code, failed.reason) == (grpc.StatusCode.UNAVAILABLE, "ENGINE_STOPPED")


@pytest.mark.parametrize("kind", KINDS)
async def test_choices_have_seeds_of_their_own_and_chunks_are_the_answer(engines: Engines, kind: str) -> None:
    stub = await engines.start(kind)
    events = await streamed(stub, asking(max_tokens=6, seed=3, n=3, temperature=1.0))
    prompt = engines.tokenizer.encode("The ledger keeps")
    for choice in range(3):
        ids = [token for event in events if event.chunk.index == choice for token in event.chunk.token_ids]
        assert ids == engines.fast.tokens(prompt, 3 + choice, 6)
    assert sorted(each.sampling.choice for each in await engines.deployment.receipts(3)) == [0, 1, 2]


async def test_receipts_name_a_head_whose_every_byte_was_checked(engines: Engines, tmp_path: Path) -> None:
    folder = tmp_path / "head"
    evidence().write(folder)
    for name, data in (("config.json", b"{}"), ("model.safetensors", b"weights")):
        (folder / name).write_bytes(data)
    for role in ("publisher", "log"):
        KEYS[role].publish(engines.deployment.trusted)
    await engines.start(weights=False, head=(str(folder),))
    first, second = await engines.receipt(max_tokens=2), await engines.receipt(max_tokens=2, method="off")
    assert [each.spec_decode.head_cid for each in (first, second)] == [HEAD.cid, None]
    await engines.deployment.stop_generation()
    (folder / "model.safetensors").write_bytes(b"Weights")
    with pytest.raises(CannotStart):
        await engines.start(weights=False, head=(str(folder),))


async def test_a_deviation_halts_and_what_comes_then_goes_to_the_plain_upstream(engines: Engines) -> None:
    stub = await engines.start()
    engines.fast.differs_at = 3
    failed = await failure(stub.Generate(asking(max_tokens=5, verify=INLINE)))
    assert failed.reason == "SPEC_DECODE_DEVIATION"
    await stub.Generate(asking(max_tokens=5))
    first, second = await engines.deployment.receipts(2)
    assert (first.spec_decode.method, first.spec_decode.verified_identical_to_off) == ("engine", False)
    assert (second.spec_decode.method, second.spec_decode.fallback_reason) == ("off", "halted")


async def test_an_engine_that_disagrees_with_itself_is_not_halted(engines: Engines) -> None:
    await engines.start()
    engines.plain.fault = "unsteady"
    first, second = await engines.receipt(max_tokens=5, verify=INLINE), await engines.receipt(max_tokens=5)
    assert (first.spec_decode.verified_identical_to_off, second.spec_decode.method) == (None, "engine")
    assert (first.spec_decode.unverified or "").startswith("UNSTABLE")


@pytest.mark.parametrize(
    ("differs_at", "gap", "verdict", "error"),
    [(None, 2.0, "SAME", None), (3, 0.2, "UNSTABLE", None), (3, 2.0, "DEVIATION", "SPEC_DECODE_DEVIATION")],
)
async def test_receipt_and_span_name_what_verification_found_and_a_near_tie_is_no_deviation(
    engines: Engines, monkeypatch: pytest.MonkeyPatch, differs_at: int | None, gap: float, verdict: str,
    error: str | None,
) -> None:  # fmt: skip
    with collecting(monkeypatch) as collector:
        stub = await engines.start()
        engines.plain.gap, engines.fast.differs_at = gap, differs_at
        call = stub.Generate(asking(max_tokens=5, verify=INLINE))
        if error is None:
            await call
        else:
            assert (await failure(call)).reason == error
        (receipt,) = await engines.deployment.receipts(1)
        await engines.deployment.stop_generation()
    block, (span,) = receipt.spec_decode, collector.spans
    assert block.verified_identical_to_off is {"SAME": True, "UNSTABLE": None, "DEVIATION": False}[verdict]
    assert (block.unverified or "").startswith("UNSTABLE") == (verdict == "UNSTABLE")
    assert (span.kind, span.attributes["gen_ai.provider.name"]) == (CLIENT, "vllm")
    assert (span.attributes["kolm.receipt.verdicts"], span.attributes["kolm.method"]) == ([verdict], "engine")
    assert (span.attributes.get("error.type"), span.is_error) == (error, error is not None)


async def test_an_answer_without_speculation_never_deviates(engines: Engines) -> None:
    await engines.start()
    engines.plain.fault, engines.plain.bodies = "first", []  # all answers of the check agree with each other
    receipt = await engines.receipt(max_tokens=5, method="off", verify=INLINE)
    assert receipt.spec_decode.verified_identical_to_off is None
    assert (receipt.spec_decode.unverified or "").startswith("UNSTABLE")


@pytest.mark.parametrize("differs_at", [None, 3])
async def test_what_the_plain_upstream_could_not_confirm_is_unchecked_with_its_reason(
    engines: Engines, differs_at: int | None
) -> None:
    await engines.start()
    engines.plain.fault, engines.fast.differs_at = "drop", differs_at
    engines.plain.whole = 0 if differs_at is None else 1  # it answers once, and then never again
    first, second = await engines.receipt(max_tokens=5, verify=INLINE), await engines.receipt(max_tokens=5)
    assert (first.spec_decode.verified_identical_to_off, second.spec_decode.method) == (None, "engine")
    assert (first.spec_decode.unverified or "").startswith("UNCHECKED")
    assert second.spec_decode.unverified is None


@pytest.mark.parametrize(
    ("kind", "members", "field"),
    [
        ("llama-server", {"stop_token_ids": [5]}, "sampling.stop_token_ids"),
        ("llama-server", {"min_tokens": 2}, "sampling.min_tokens"),
        ("vllm", {"k": 3}, "spec_decode.k"),
        ("vllm", {"method": "eagle3"}, "spec_decode.method"),
        ("vllm", {"eagle_head": "some-head"}, "spec_decode.eagle_head"),
    ],
)
async def test_what_the_engine_cannot_do_is_refused_before_it_is_sent(
    engines: Engines, kind: str, members: dict[str, Any], field: str
) -> None:
    stub = await engines.start(kind)
    failed = await failure(stub.Generate(asking(max_tokens=5, **members)))
    assert (failed.code, failed.fields) == (grpc.StatusCode.INVALID_ARGUMENT, [field])
    assert not engines.fast.bodies


@pytest.mark.parametrize(
    ("kind", "members", "reason"),
    [
        ("vllm", {"temperature": 0.7, "min_p": 0.1}, "min_p"),
        ("vllm", {"min_p": 0.1}, None),
        ("vllm", {"logit_bias": {5: 1.0}}, "logit_bias"),
        ("sglang", {"temperature": 0.7, "min_p": 0.1}, "min_p"),
        ("llama-server", {"temperature": 0.7, "min_p": 0.1, "logit_bias": {5: 1.0}}, None),
    ],
)
async def test_parameters_that_an_engine_does_not_speculate_with_go_to_the_plain_upstream(
    engines: Engines, kind: str, members: dict[str, Any], reason: str | None
) -> None:
    stub = await engines.start(kind)
    resolved = (await stub.Generate(asking(max_tokens=5, **members))).resolved
    assert resolved.fallback_reason == (reason or "")
    assert (bool(engines.fast.bodies), bool(engines.plain.bodies)) == (reason is None, reason is not None)
    if reason is not None:
        failed = await failure(stub.Generate(asking(max_tokens=5, method="engine", **members)))
        assert failed.reason == "METHOD_CANNOT_RUN"


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("refuse", grpc.StatusCode.INVALID_ARGUMENT),
        ("grammar", grpc.StatusCode.INVALID_ARGUMENT),
        ("busy", grpc.StatusCode.RESOURCE_EXHAUSTED),
        ("loading", grpc.StatusCode.UNAVAILABLE),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_refusal_is_told_as_what_it_is_and_leaves_no_receipt(
    engines: Engines, kind: str, fault: str, code: grpc.StatusCode
) -> None:
    stub = await engines.start(kind)
    engines.fast.fault = engines.plain.fault = fault
    constraint = {"structured_outputs": {"json": '{"type": "object"}'}} if fault == "grammar" else {}
    failed = await failure(stub.Generate(asking(max_tokens=5, **constraint)))
    assert failed.code == code
    named = {"refuse": ["sampling.top_k"], "grammar": ["sampling.structured_outputs"]}
    assert failed.fields == named.get(fault, [])
    engines.fast.fault = None
    await stub.Generate(asking(max_tokens=5, request_id="after"))
    (receipt,) = await engines.deployment.receipts(1)
    assert receipt.request_id == "after"


async def test_an_answer_that_breaks_off_before_its_first_token_is_asked_for_again(engines: Engines) -> None:
    stub = await engines.start()
    engines.fast.fault, engines.fast.after = "drop", 0
    call = asyncio.ensure_future(stub.Generate(asking(max_tokens=5)))
    await until(engines.asked)
    engines.fast.fault = None
    await call
    (receipt,) = await engines.deployment.receipts(1)
    assert (receipt.output.finish_reason, len(engines.fast.bodies)) == ("length", 2)


async def test_while_the_engine_that_speculates_is_away_the_plain_one_answers(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_preparation, "_LOOK_SECONDS", 0.05)
    stub = await engines.start()
    await engines.stop_fast()
    for _ in range(2):  # the first one finds it away
        answer = await stub.Generate(asking(max_tokens=3))
        assert (answer.resolved.method, answer.resolved.fallback_reason) == ("off", "away")
    for each in await engines.deployment.receipts(2):
        block = each.spec_decode
        assert (block.requested_method, block.method, block.fallback_reason) == ("auto", "off", "away")
    assert (await failure(stub.Generate(asking(max_tokens=3, method="engine")))).code == grpc.StatusCode.UNAVAILABLE
    await engines.restart_fast()

    await engines.until_answered_by("engine")


async def test_a_caller_is_not_told_where_the_engine_is(engines: Engines) -> None:
    stub = await engines.start()
    await engines.stop_fast()
    failed = await failure(stub.Generate(asking(max_tokens=3, method="engine")))
    assert str(engines.fast.port) not in failed.message
    engines.plain.fault, engines.plain.after = "drop", 0
    await failure(stub.Generate(asking(max_tokens=3, method="off")))
    engines.plain.version = None  # type: ignore[assignment]  # no text: it does not describe itself
    failed = await failure(stub.Generate(asking(max_tokens=3, method="off")))
    assert str(engines.plain.port) not in failed.message


@pytest.mark.parametrize("fault", ["gone", "drop"])  # before the head of the stream, and after it
@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_that_ends_the_engine_is_sent_three_times(engines: Engines, kind: str, fault: str) -> None:
    stub = await engines.start(kind)
    engines.fast.fault, engines.fast.after = fault, 0
    answer = await stub.Generate(asking(max_tokens=3))
    assert (answer.resolved.method, answer.resolved.fallback_reason) == ("off", "away")
    assert len(engines.fast.bodies) == 3


async def test_a_grammar_in_another_form_than_the_engine_s_is_refused_by_its_field(engines: Engines) -> None:
    stub = await engines.start("llama-server")
    failed = await failure(stub.Generate(asking(max_tokens=3, structured_outputs={"grammar": 'start: "a"'})))
    assert (failed.code, failed.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["sampling.structured_outputs"])
    assert not engines.fast.bodies


async def test_one_answer_that_hangs_holds_no_other_and_ends_when_its_caller_leaves(engines: Engines) -> None:
    stub = await engines.start()
    engines.fast.fault = "hang"
    hanging = stub.Generate(asking(max_tokens=5, request_id="hanging"))
    await until(engines.asked)
    engines.fast.fault = None
    await stub.Generate(asking(max_tokens=5, request_id="other"))
    hanging.cancel()
    receipt = await engines.deployment.receipt_of("hanging")
    assert (receipt.output.finish_reason, receipt.output.tokens) == ("cancelled", 2)


@pytest.mark.parametrize("fault", ["hang", "comments"])
@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_a_stream_begins_though_its_engine_sends_a_head_and_no_event(
    engines: Engines, monkeypatch: pytest.MonkeyPatch, kind: str, fault: str
) -> None:
    monkeypatch.setattr(upstream, "_REFUSAL_SECONDS", 0.05)
    stub = await engines.start(kind)
    engines.fast.fault, engines.fast.after = fault, 0
    asked = asking(max_tokens=5, structured_outputs={"regex": "a+"})
    call = stub.GenerateStream(pb.GenerateStreamRequest(request=asked))
    assert (await call.read()).HasField("started")
    call.cancel()
    (receipt,) = await engines.deployment.receipts(1)
    assert (receipt.output.finish_reason, receipt.output.tokens) == ("cancelled", 0)


async def test_a_caller_who_leaves_before_the_first_event_ends_the_request(engines: Engines) -> None:
    stub = await engines.start()
    engines.fast.fault, engines.fast.after = "hang", 0
    call = stub.Generate(asking(max_tokens=5, structured_outputs={"regex": "a+"}))
    await until(engines.asked)
    call.cancel()
    (receipt,) = await engines.deployment.receipts(1)
    assert (receipt.output.finish_reason, receipt.output.tokens) == ("cancelled", 0)


async def test_an_upstream_that_says_nothing_for_too_long_has_broken_off(engines: Engines) -> None:
    stub = await engines.start(engine_silence_seconds=0.3)
    engines.fast.fault = "hang"
    answer = await stub.Generate(asking(max_tokens=5))
    assert answer.choices[0].finish_reason == pb.FINISH_REASON_ERROR
    (receipt,) = await engines.deployment.receipts(1)
    assert (receipt.output.finish_reason, receipt.output.tokens) == ("error", 2)


async def test_a_new_version_is_a_new_profile_in_the_log_and_no_deviation(engines: Engines) -> None:
    stub = await engines.start()
    await stub.Generate(asking(max_tokens=3))
    for each in (engines.plain, engines.fast):
        each.version, each.taste, each.fault, each.after = "1.3.0", "another", "drop", 0
    broken = await failure(stub.Generate(asking(max_tokens=3, request_id="broken")))
    assert broken.code == grpc.StatusCode.UNAVAILABLE
    engines.plain.fault = engines.fast.fault = None
    await stub.Generate(asking(max_tokens=3, request_id="meanwhile"))
    await stub.Generate(asking(max_tokens=3, request_id="after", verify=INLINE))
    before, _, after = await engines.deployment.receipts(3)
    assert (before.engine, after.engine, after.request_id) == ("vllm/1.2.3", "vllm/1.3.0", "after")
    assert (after.spec_decode.method, after.spec_decode.verified_identical_to_off) == ("engine", True)
    profiles = await engines.profiles(2)
    assert [profiles[each.profile_cid].version for each in (before, after)] == ["1.2.3", "1.3.0"]


async def test_a_version_that_comes_back_has_its_profile(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_preparation, "_LOOK_SECONDS", 0.05)
    await engines.start()
    for version in ("1.3.0", "1.2.3", "1.4.0"):
        engines.plain.version = engines.fast.version = version

        async def is_served(version: str = version) -> bool:
            return (await engines.receipt()).engine == f"vllm/{version}"

        await until(is_served)
    assert [each.version for each in (await engines.profiles(3)).values()] == ["1.2.3", "1.3.0", "1.4.0"]


async def test_a_replaced_key_signs_the_profile_again(engines: Engines) -> None:
    deployment = engines.deployment
    await engines.start()
    await engines.receipt()
    await deployment.stop_generation()
    await deployment.stop_ledger()
    (old,) = deployment.trusted.glob("receipts-*.pub")
    (deployment.trusted / RETIRED).mkdir()
    old.rename(deployment.trusted / RETIRED / old.name)
    (key := deployment.settings().receipts_key).unlink()
    SigningKey.load_or_create(key, "receipts").publish(deployment.trusted)
    await deployment.start_ledger()
    await engines.start()
    receipt = await engines.receipt()
    assert receipt.profile_cid in await engines.profiles(2)


async def test_an_update_that_the_disk_did_not_take_at_first_gets_its_profile(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_preparation, "_LOOK_SECONDS", 0.05)
    stub, write = await engines.start(), remote_preparation.write_durably

    def full(path: Path, data: bytes) -> None:
        monkeypatch.setattr(remote_preparation, "write_durably", write)
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(remote_preparation, "write_durably", full)
    engines.plain.version = engines.fast.version = "1.3.0"
    profiles = await engines.profiles(2)
    await stub.Generate(asking(max_tokens=3))
    (receipt,) = await engines.deployment.receipts(1)
    assert (receipt.engine, profiles[receipt.profile_cid].version) == ("vllm/1.3.0", "1.3.0")


async def test_a_speculation_that_the_engine_names_late_is_no_other_profile(engines: Engines) -> None:
    stub = await engines.start("llama-server")
    await stub.Generate(asking(max_tokens=3))
    engines.fast.speculation = "ngram-map-k"
    engines.fast.fault, engines.fast.after = "drop", 0  # so that it is looked at
    await stub.Generate(asking(max_tokens=3))
    engines.fast.fault = None
    await stub.Generate(asking(max_tokens=3))
    receipts = await engines.deployment.receipts(3)
    assert len({each.profile_cid for each in receipts}) == 1


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_no_id_beyond_the_vocabulary_is_sent_and_the_engine_is_asked_for_its_size(
    engines: Engines, kind: str
) -> None:
    stub = await engines.start(kind, weights=False)
    last = max(engines.tokenizer.fast.get_vocab().values())
    failed = await failure(stub.Generate(asking("", token_ids=pb.TokenIds(ids=[5, last + 1]), max_tokens=5)))
    assert (failed.code, failed.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["token_ids"])
    assert not engines.fast.bodies
    await stub.Generate(asking("", token_ids=pb.TokenIds(ids=[5, last]), max_tokens=5))


@pytest.mark.parametrize(
    "lie", [{"version": ""}, {"version": 5}, {"model": "x" * 300}, {"model": None}, {"vocabulary_size": "many"}]
)
async def test_an_upstream_that_describes_itself_as_none_does_is_not_served(
    engines: Engines, lie: dict[str, Any]
) -> None:
    with pytest.raises(CannotStart):
        await engines.start("llama-server", lie=lie)


async def test_an_answer_to_another_prompt_is_none(engines: Engines) -> None:
    stub = await engines.start()
    engines.fast.fault = "prompt"
    assert (await failure(stub.Generate(asking(max_tokens=3)))).code == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("fault", ["fails", "page", "event", "moved", "garbage"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_failure_before_the_first_token_is_an_error_of_the_call(
    engines: Engines, kind: str, fault: str
) -> None:
    stub = await engines.start(kind)
    engines.fast.fault = fault
    assert (await failure(stub.Generate(asking(max_tokens=3)))).code == grpc.StatusCode.UNAVAILABLE
    with pytest.raises(grpc.aio.AioRpcError):
        await streamed(stub, asking(max_tokens=3))
    engines.fast.fault = None
    await stub.Generate(asking(max_tokens=3, request_id="after"))
    (receipt,) = await engines.deployment.receipts(1)
    assert receipt.request_id == "after"

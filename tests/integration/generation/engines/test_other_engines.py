"""Another engine behind the generation service: what it answers is promised, signed and logged as ours is; what it
cannot do is refused by field; what it gets wrong signs nothing that was not returned.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import speculation_pb2
from kolm.ledger.v1 import documents_pb2, ledger_pb2
from ledger.documents.engine_profile import EngineProfile
from ledger.documents.receipt import Receipt
from ledger.encoding.commitment import OUTPUT_TEXT_DOMAIN, commit_text
from ledger.encoding.stream_digest import token_digest
from ledger.encoding.text_forms import cid
from services.client.ledger.log import LogEntry
from services.generation import remote_preparation
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.remote import upstream
from services.runtime.process import CannotStart
from tests.fakes.collector import collecting
from tests.fakes.upstreams import FakeUpstream, listening
from tests.integration.generation.deployment import PATIENCE, Deployment, asking, failure, until
from tests.unit.ledger.audit.test_draft_head_evidence import evidence
from tests.unit.ledger.builders import KEYS
from tests.unit.ledger.documents.test_manifests import HEAD

KINDS = ("vllm", "sglang", "llama-server")
INLINE = speculation_pb2.VERIFY_MODE_INLINE
CLIENT = 3  # SpanKind


class Engines:
    """A pair of fakes, and servers before them."""

    def __init__(self, deployment: Deployment, model: Path) -> None:
        self.deployment, self.model = deployment, model
        self.tokenizer = Tokenizer(model)
        self._plain_listens, self._fast_listens = AsyncExitStack(), AsyncExitStack()
        self.stub: Any
        self.plain: FakeUpstream
        self.fast: FakeUpstream

    def fake(self, kind: str, **members: Any) -> FakeUpstream:
        letters = [token for token in range(4, 384) if self.tokenizer.decode([token]).isascii()]
        return FakeUpstream(kind, self.tokenizer, vocabulary=letters, **members)

    async def start(
        self, kind: str = "vllm", *, weights: bool = True, lie: dict[str, Any] | None = None, **settings: Any
    ) -> Any:
        self.plain, self.fast = self.fake(kind, **(lie or {})), self.fake(kind, speculates=True)
        await self._plain_listens.enter_async_context(listening(self.plain))
        await self.restart_fast()
        self.stub = await self.deployment.start_generation(
            engine=kind, plain_url=self.plain.url, url=self.fast.url, weights=self.model if weights else None,
            **settings,
        )  # fmt: skip
        return self.stub

    async def profiles(self, count: int) -> dict[str, EngineProfile]:
        """The first `count` profiles of the log by their digests, once they are there."""
        found: dict[str, EngineProfile] = {}
        request = ledger_pb2.WatchEntriesRequest(follow=True, kinds=[documents_pb2.ENTRY_KIND_ENGINE_PROFILE])
        async for message in (await self.deployment.ledger()).WatchEntries(request, timeout=PATIENCE):
            payload = LogEntry(message.entry.entry).envelope.payload
            found[cid(payload)] = EngineProfile.from_bytes(payload)
            if len(found) == count:
                break
        return found

    async def restart_fast(self) -> None:
        await self._fast_listens.enter_async_context(listening(self.fast))

    async def stop_fast(self) -> None:
        await self._fast_listens.aclose()

    async def asked(self) -> bool:
        """Whether the upstream that speculates has been sent a request."""
        return bool(self.fast.bodies)

    async def close(self) -> None:
        await self.stop_fast()
        await self._plain_listens.aclose()


@pytest.fixture
async def engines(deployment: Deployment, model: Path) -> AsyncIterator[Engines]:
    engines = Engines(deployment, model)
    yield engines
    await deployment.stop_generation()
    await engines.close()


async def streamed(stub: Any, request: pb.GenerateRequest) -> list[pb.GenerateStreamResponse]:
    return [event async for event in stub.GenerateStream(pb.GenerateStreamRequest(request=request))]


@pytest.mark.parametrize("weights", [True, False], ids=["weights", "no weights"])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_of_another_engine_has_its_receipt_in_the_ledger(
    engines: Engines, kind: str, weights: bool
) -> None:
    stub = await engines.start(kind, weights=weights)
    engines.fast.cached = 1
    answer = await stub.Generate(asking(max_tokens=9, seed=7, temperature=1.0))
    (receipt,) = await engines.deployment.receipts(1)
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
    stub = await engines.start(weights=False, head=(str(folder),))
    await stub.Generate(asking(max_tokens=2))
    await stub.Generate(asking(max_tokens=2, method="off"))
    first, second = await engines.deployment.receipts(2)
    assert [each.spec_decode.head_cid for each in (first, second)] == [HEAD.cid, None]
    await engines.deployment.stop_generation()
    (folder / "model.safetensors").write_bytes(b"Weights")
    with pytest.raises(CannotStart):
        await engines.start(weights=False, head=(str(folder),))


async def test_what_is_equal_without_speculation_is_signed_as_such(engines: Engines) -> None:
    stub = await engines.start()
    await stub.Generate(asking(max_tokens=5, verify=INLINE))
    (receipt,) = await engines.deployment.receipts(1)
    assert receipt.spec_decode.verified_identical_to_off is True


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
    stub = await engines.start()
    engines.plain.fault = "unsteady"
    await stub.Generate(asking(max_tokens=5, verify=INLINE))
    await stub.Generate(asking(max_tokens=5))
    first, second = await engines.deployment.receipts(2)
    assert (first.spec_decode.verified_identical_to_off, second.spec_decode.method) == (None, "engine")
    assert (first.spec_decode.unverified or "").startswith("UNSTABLE")


@pytest.mark.parametrize(("gap", "halted"), [(0.2, False), (2.0, True)])
async def test_a_near_tie_is_no_deviation(engines: Engines, gap: float, halted: bool) -> None:
    stub = await engines.start()
    engines.plain.gap, engines.fast.differs_at = gap, 3
    call = stub.Generate(asking(max_tokens=5, verify=INLINE))
    if halted:
        assert (await failure(call)).reason == "SPEC_DECODE_DEVIATION"
        return
    await call
    (receipt,) = await engines.deployment.receipts(1)
    assert (receipt.spec_decode.unverified or "").startswith("UNSTABLE")


@pytest.mark.parametrize(
    ("differs_at", "gap", "verdict", "error"),
    [(None, 2.0, "SAME", None), (3, 0.2, "UNSTABLE", None), (3, 2.0, "DEVIATION", "SPEC_DECODE_DEVIATION")],
)
async def test_a_span_names_the_engine_and_what_verification_found(
    engines: Engines,
    monkeypatch: pytest.MonkeyPatch,
    differs_at: int | None,
    gap: float,
    verdict: str,
    error: str | None,
) -> None:
    with collecting(monkeypatch) as collector:
        stub = await engines.start()
        engines.plain.gap, engines.fast.differs_at = gap, differs_at
        call = stub.Generate(asking(max_tokens=5, verify=INLINE))
        await (call if error is None else failure(call))
        await engines.deployment.stop_generation()
    (span,) = collector.spans
    assert (span.kind, span.attributes["gen_ai.provider.name"]) == (CLIENT, "vllm")
    assert (span.attributes["kolm.receipt.verdicts"], span.attributes["kolm.method"]) == ([verdict], "engine")
    assert (span.attributes.get("error.type"), span.is_error) == (error, error is not None)


async def test_an_answer_without_speculation_never_deviates(engines: Engines) -> None:
    stub = await engines.start()
    engines.plain.fault, engines.plain.bodies = "first", []  # all answers of the check agree with each other
    await stub.Generate(asking(max_tokens=5, method="off", verify=INLINE))
    (receipt,) = await engines.deployment.receipts(1)
    assert receipt.spec_decode.verified_identical_to_off is None
    assert (receipt.spec_decode.unverified or "").startswith("UNSTABLE")


@pytest.mark.parametrize("differs_at", [None, 3])
async def test_what_the_plain_upstream_could_not_confirm_is_unchecked_with_its_reason(
    engines: Engines, differs_at: int | None
) -> None:
    stub = await engines.start()
    engines.plain.fault, engines.fast.differs_at = "drop", differs_at
    engines.plain.whole = 0 if differs_at is None else 1  # it answers once, and then never again
    await stub.Generate(asking(max_tokens=5, verify=INLINE))
    await stub.Generate(asking(max_tokens=5))
    first, second = await engines.deployment.receipts(2)
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


@pytest.mark.parametrize("kind", KINDS)
async def test_a_broken_answer_ends_with_an_error_and_a_receipt_of_what_was_returned(
    engines: Engines, kind: str
) -> None:
    await engines.start(kind)
    faults = ("drop", "short", "text", "ids", "many", "garbage", "cut", "stopped")
    for fault in faults:
        if (kind, fault) == ("sglang", "garbage"):  # no request is accepted without a first event
            continue
        engines.fast.fault = fault
        _, receipt = await said_and_signed(engines, max_tokens=5)
        assert (receipt.output.finish_reason, receipt.spec_decode.tokens_proposed) == ("error", None), fault


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

    async def back() -> bool:
        return (await stub.Generate(asking(max_tokens=3))).resolved.method == "engine"

    await until(back)


async def test_a_caller_is_not_told_where_the_engine_is(engines: Engines) -> None:
    stub = await engines.start()
    await engines.stop_fast()
    failed = await failure(stub.Generate(asking(max_tokens=3, method="engine")))
    assert str(engines.fast.port) not in failed.message


@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_that_ends_the_engine_is_sent_three_times(engines: Engines, kind: str) -> None:
    stub = await engines.start(kind)
    engines.fast.fault, engines.fast.after = "gone", 0
    await stub.Generate(asking(max_tokens=3))
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
    before, *_, after = await engines.deployment.receipts(4)
    assert (before.engine, after.engine, after.request_id) == ("vllm/1.2.3", "vllm/1.3.0", "after")
    assert (after.spec_decode.method, after.spec_decode.verified_identical_to_off) == ("engine", True)
    profiles = await engines.profiles(2)
    assert [profiles[each.profile_cid].version for each in (before, after)] == ["1.2.3", "1.3.0"]


async def test_a_speculation_that_the_engine_names_late_is_no_other_profile(engines: Engines) -> None:
    stub = await engines.start("llama-server")
    await stub.Generate(asking(max_tokens=3))
    engines.fast.speculation, engines.fast.fault, engines.fast.after = (
        "ngram-map-k",
        "drop",
        0,
    )  # so that it is looked at
    await failure(stub.Generate(asking(max_tokens=3, request_id="broken")))
    engines.fast.fault = None
    await stub.Generate(asking(max_tokens=3))
    receipts = await engines.deployment.receipts(3)
    assert len({each.profile_cid for each in receipts}) == 1


async def said_and_signed(engines: Engines, **members: Any) -> tuple[list[pb.GenerateStreamResponse], Receipt]:
    """The answer of one request, and its receipt, which is of exactly that."""
    name = f"request {len(engines.fast.bodies)}"
    events = list[pb.GenerateStreamResponse]()
    with suppress(grpc.aio.AioRpcError):  # if it failed before its first token
        async for event in engines.stub.GenerateStream(
            pb.GenerateStreamRequest(request=asking(request_id=name, **members))
        ):
            events.append(event)
    receipt = await engines.deployment.receipt_of(name)
    ids = [token for event in events for token in event.chunk.token_ids]
    text = "".join(event.chunk.text for event in events)
    asked = ledger_pb2.GetReceiptRequest(receipt_id=receipt.receipt_id, include_content=True)
    content = (await (await engines.deployment.ledger()).GetReceipt(asked)).content
    assert (receipt.output.tokens, receipt.output.stream_digest) == (len(ids), token_digest(ids))
    assert receipt.output.text_commitment == commit_text(OUTPUT_TEXT_DOMAIN, content.output_salt, text)
    return events, receipt


def with_members(path: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    """A twist: another value at a dotted path, in those events that have it."""

    def twist(event: dict[str, Any]) -> dict[str, Any]:
        *outer, last = path.split(".")
        place: Any = event
        for name in outer:
            place = (
                place[int(name)]
                if isinstance(place, list) and place
                else place.get(name)
                if isinstance(place, dict)
                else None
            )
        if isinstance(place, dict) and last in place:
            place[last] = value
        return event

    return twist


def with_literal(path: str, literal: str) -> Callable[[dict[str, Any]], str]:
    """A twist whose value is no JSON that Python would write."""
    set_mark = with_members(path, "@@")
    return lambda event: json.dumps(set_mark(event)).replace('"@@"', literal)


HUGE = 10**30
LIES = [
    *(("vllm", with_members("choices.0.token_ids", [wrong])) for wrong in (-1, HUGE, 2**32 - 1, 400, None, "5", 1.5)),
    *(("sglang", with_members("output_ids", wrong)) for wrong in ([-1], [2**32 - 1], [5, 6, 7, 8, 9, 10], "ids", None)),
    *(("llama-server", with_members("tokens", wrong)) for wrong in ([-1], [400], {}, [[5]], [True])),
    ("vllm", with_literal("choices.0.text", '"\\ud800"')),
    ("vllm", with_literal("choices.0.text", "NaN")),
    ("vllm", with_literal("choices.0.text", "[" * 5000)),
    ("vllm", with_members("choices.0.text", "many words " * 1000)),
    ("vllm", with_members("choices", {"a": 1})),
    *(("vllm", with_members("metrics.speculative_decoding.num_draft_tokens", wrong)) for wrong in (HUGE, -1, "5", 1.5)),
    *(("vllm", with_members("metrics.speculative_decoding.num_accepted_draft_tokens", wrong)) for wrong in (-3, "1")),
    *(("vllm", with_members("usage.prompt_tokens_details.cached_tokens", wrong)) for wrong in ("1", HUGE, [1])),
    *(("llama-server", with_members("timings.draft_n", wrong)) for wrong in ("5", HUGE, -1, [0])),
    ("sglang", with_members("meta_info.spec_num_proposed_drafts", "5")),
    *(("vllm", with_members("choices.0.finish_reason", wrong)) for wrong in ([], "because", 5)),
    *(("llama-server", with_members("tokens_predicted", wrong)) for wrong in ("5", HUGE)),
]


@pytest.mark.parametrize("kind", KINDS)
async def test_whatever_an_upstream_says_the_call_ends_and_its_receipt_is_of_what_was_returned(
    engines: Engines, kind: str
) -> None:
    await engines.start(kind)
    for number, lie in enumerate(lie for liar, lie in LIES if liar == kind):
        engines.fast.twist = lie
        _, receipt = await said_and_signed(engines, max_tokens=5)
        assert receipt.output.finish_reason in ("error", "length"), number


async def test_a_stop_reason_that_no_request_asked_for_is_none(engines: Engines) -> None:
    await engines.start()
    reason: Any = None
    engines.fast.ends_after = 2

    def twist(event: dict[str, Any]) -> dict[str, Any]:
        for choice in event["choices"]:
            if "finish_reason" in choice:
                choice["stop_reason"] = reason
        return event

    engines.fast.twist = twist
    for reason in ("", "x" * 5000, "another", 7, True, [], HUGE):
        _, receipt = await said_and_signed(engines, max_tokens=5)
        assert receipt.output.stop_reason is None, reason


async def test_a_text_that_lacks_its_last_word_is_no_text_of_its_ids(engines: Engines) -> None:
    """It reports an end by the model, but the last token is a word."""
    await engines.start()
    sent: list[int] = []

    def twist(event: dict[str, Any]) -> dict[str, Any]:
        for choice in event["choices"]:
            choice["text"] = choice["text"] if len(sent) < 4 else ""
            sent.extend(choice["token_ids"])
            if "finish_reason" in choice:
                choice["finish_reason"] = "stop"
        return event

    engines.fast.twist = twist
    _, receipt = await said_and_signed(engines, max_tokens=5)
    assert (receipt.output.finish_reason, receipt.output.tokens) == ("error", 5)


async def test_a_log_probability_that_is_no_number_ends_the_answer(engines: Engines) -> None:
    await engines.start()
    logprob = ""

    def twist(event: dict[str, Any]) -> str:
        for choice in event["choices"]:
            if ids := choice["token_ids"]:
                told = -0.5 if "prompt_token_ids" in choice else "@@"  # the first event accepts the request
                choice["logprobs"] = {
                    "tokens": [f"token_id:{ids[0]}"], "token_logprobs": [told], "top_logprobs": [{}]
                }  # fmt: skip
        return json.dumps(event).replace('"@@"', logprob)

    engines.fast.twist = twist
    for logprob in ("NaN", "1e999", "null", '"x"', "Infinity"):
        _, receipt = await said_and_signed(engines, max_tokens=5, logprobs=1)
        assert (receipt.output.finish_reason, receipt.output.tokens) == ("error", 1), logprob


@pytest.mark.parametrize("lie", [
    {"logprob": 3.5}, {"logprob": -1e308}, {"id": 5}, None,
])  # fmt: skip
async def test_log_probabilities_that_are_not_those_of_the_tokens_end_the_answer(
    engines: Engines, lie: dict[str, Any] | None
) -> None:
    await engines.start("llama-server")
    engines.fast.gap = 0.5
    _, receipt = await said_and_signed(engines, max_tokens=5, logprobs=2)
    assert receipt.output.finish_reason == "length"

    def twist(event: dict[str, Any]) -> dict[str, Any]:
        told = event.get("completion_probabilities", [])
        return event | {"completion_probabilities": [each | lie for each in told] if lie else told * 2}

    engines.fast.twist = twist
    _, receipt = await said_and_signed(engines, max_tokens=5, logprobs=2)
    assert receipt.output.finish_reason == "error"
    engines.fast.twist = lambda event: {name: value for name, value in event.items() if "probab" not in name}
    _, receipt = await said_and_signed(engines, max_tokens=5, logprobs=2)
    assert receipt.output.finish_reason == "error"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_that_never_ends_does(engines: Engines, kind: str) -> None:
    await engines.start(kind, engine_silence_seconds=0.1)
    for fault in ("idle", "comments", "line"):
        engines.fast.fault = fault
        _, receipt = await said_and_signed(engines, max_tokens=5)
        assert (receipt.output.finish_reason, receipt.output.tokens) == ("error", 2), fault


async def test_an_answer_that_sglang_ends_with_an_error_lacks_the_token_that_it_made_up(engines: Engines) -> None:
    await engines.start("sglang")

    def twist(event: dict[str, Any]) -> dict[str, Any]:
        if len(event["output_ids"]) > 2:
            event["meta_info"]["finish_reason"] = {"type": "abort", "message": "no memory", "status_code": 500}
        return event

    engines.fast.twist = twist
    _, receipt = await said_and_signed(engines, max_tokens=5)
    assert (receipt.output.finish_reason, receipt.output.tokens) == ("error", 2)


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


async def test_an_engine_takes_back_nothing_that_it_has_said(engines: Engines) -> None:
    await engines.start("sglang")
    other = engines.fast.vocabulary[0]

    def twist(event: dict[str, Any]) -> dict[str, Any]:
        if len(event["output_ids"]) > 2:
            event["output_ids"][0] = other
        return event

    engines.fast.twist = twist
    _, receipt = await said_and_signed(engines, max_tokens=5)
    assert (receipt.output.finish_reason, receipt.output.tokens) == ("error", 2)


async def test_text_that_came_without_a_token_is_not_asked_for_again(engines: Engines) -> None:
    await engines.start(weights=False)
    engines.fast.fault = "drop"

    def twist(event: dict[str, Any]) -> dict[str, Any]:
        return {"choices": [each | {"token_ids": []} for each in event["choices"]]}

    engines.fast.twist = twist
    _, receipt = await said_and_signed(engines, max_tokens=5)
    assert (receipt.output.finish_reason, len(engines.fast.bodies)) == ("error", 1)


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


@pytest.mark.parametrize("fault", ["fails", "page", "event", "moved"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_failure_before_the_first_token_is_an_error_of_the_call(
    engines: Engines, kind: str, fault: str
) -> None:
    stub = await engines.start(kind)
    engines.fast.fault = fault
    assert (await failure(stub.Generate(asking(max_tokens=3)))).code == grpc.StatusCode.UNAVAILABLE
    with pytest.raises(grpc.aio.AioRpcError):
        await streamed(stub, asking(max_tokens=3))


async def test_an_answer_that_ends_within_a_character_is_kept(engines: Engines) -> None:
    await engines.start("llama-server")
    engines.fast.vocabulary = engines.tokenizer.encode("猫")[:1]
    engines.fast.tail = "\N{REPLACEMENT CHARACTER}"
    engines.fast.twist = lambda event: event | {"tokens": []}
    _, receipt = await said_and_signed(engines, max_tokens=1)
    assert (receipt.output.finish_reason, receipt.output.tokens) == ("length", 1)


@pytest.mark.parametrize(("differs_at", "kept"), [(None, 9), (3, 9), (1, 3)])
async def test_a_stream_without_all_ids_goes_on_as_the_whole_answer_does(
    engines: Engines, differs_at: int | None, kept: int
) -> None:
    """Its caller has three tokens then: a whole answer that begins otherwise is of no use."""
    await engines.start("llama-server")

    def without_the_fourth(event: dict[str, Any]) -> dict[str, Any]:
        engines.fast.differs_at = differs_at if event["stop"] else None
        return event | ({"tokens": []} if event["tokens_predicted"] == 4 else {})

    engines.fast.twist = without_the_fourth
    _, receipt = await said_and_signed(engines, max_tokens=9)
    assert (receipt.output.finish_reason, receipt.output.tokens) == ("length" if kept == 9 else "error", kept)
    engines.fast.differs_at = differs_at if kept == 9 else None
    assert receipt.output.stream_digest == token_digest(
        engines.fast.tokens(engines.tokenizer.encode("The ledger keeps"), 0, 9)[:kept]
    )


async def test_an_engine_that_breaks_off_while_the_whole_is_asked_for_keeps_what_was_returned(
    engines: Engines,
) -> None:
    await engines.start("llama-server")

    def without_the_fourth(event: dict[str, Any]) -> dict[str, Any]:
        if event["stop"]:
            engines.fast.fault, engines.fast.after = "drop", 0
        return event | ({"tokens": []} if event["tokens_predicted"] == 4 else {})

    engines.fast.twist = without_the_fourth
    _, receipt = await said_and_signed(engines, max_tokens=9)
    assert (receipt.output.finish_reason, receipt.output.tokens) == ("error", 3)

"""Another engine behind the generation service: what it answers is promised, signed and logged as ours is; what it
cannot do is refused by field; what it gets wrong signs nothing that was not returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import speculation_pb2
from kolm.ledger.v1 import documents_pb2, ledger_pb2
from ledger.documents.engine_profile import EngineProfile
from ledger.encoding.stream_digest import token_digest
from ledger.encoding.text_forms import cid
from services.client.ledger.log import LogEntry
from services.generation.engine.text.tokenizer import Tokenizer
from services.runtime.process import CannotStart
from tests.fakes.upstreams import FakeUpstream, listening
from tests.integration.generation.deployment import PATIENCE, Deployment, asking, failure, until
from tests.unit.ledger.audit.test_draft_head_evidence import evidence
from tests.unit.ledger.builders import KEYS
from tests.unit.ledger.documents.test_manifests import HEAD

KINDS = ("vllm", "sglang", "llama-server")
INLINE = speculation_pb2.VERIFY_MODE_INLINE


class Engines:
    """A pair of fakes, and servers before them."""

    def __init__(self, deployment: Deployment, model: Path) -> None:
        self.deployment, self.model = deployment, model
        self.tokenizer = Tokenizer(model)
        self._stack = AsyncExitStack()
        self.plain: FakeUpstream
        self.fast: FakeUpstream

    def fake(self, kind: str, **members: Any) -> FakeUpstream:
        letters = [token for token in range(4, 384) if self.tokenizer.decode([token]).isascii()]
        return FakeUpstream(kind, self.tokenizer, vocabulary=letters, **members)

    async def start(self, kind: str = "vllm", *, weights: bool = True, **settings: Any) -> Any:
        self.plain, self.fast = self.fake(kind), self.fake(kind, speculates=True)
        for each in (self.plain, self.fast):
            await self._stack.enter_async_context(listening(each))
        return await self.deployment.start_generation(
            engine=kind, plain_url=self.plain.url, url=self.fast.url, weights=self.model if weights else None,
            **settings,
        )  # fmt: skip

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

    async def asked(self) -> bool:
        """Whether the upstream that speculates has been sent a request."""
        return bool(self.fast.bodies)

    async def close(self) -> None:
        await self._stack.aclose()


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
    assert receipt.profile_cid == answer.resolved.profile_cid


@pytest.mark.parametrize("kind", KINDS)
async def test_choices_have_seeds_of_their_own_and_chunks_are_the_answer(engines: Engines, kind: str) -> None:
    stub = await engines.start(kind)
    events = await streamed(stub, asking(max_tokens=6, seed=3, n=3, temperature=1.0))
    prompt = engines.tokenizer.encode("The ledger keeps")
    for choice in range(3):
        ids = [token for event in events if event.chunk.index == choice for token in event.chunk.token_ids]
        assert ids == engines.fast.tokens(prompt, 3 + choice, 6)
    assert sorted(each.sampling.choice for each in await engines.deployment.receipts(3)) == [0, 1, 2]


async def test_a_server_says_which_engine_computes(engines: Engines) -> None:
    stub = await engines.start()
    info = await stub.GetModelInfo(pb.GetModelInfoRequest())
    profile = EngineProfile.from_bytes(info.profile_json)
    assert (info.engine, list(info.methods), info.model) == ("vllm/1.2.3", ["off", "engine"], "house-model")
    assert (cid(info.profile_json), profile.flags) == (info.profile_cid, {"block_size": "16"})
    assert profile.weights_checked


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


async def test_off_goes_to_the_plain_upstream(engines: Engines) -> None:
    stub = await engines.start()
    await stub.Generate(asking(max_tokens=2, method="off"))
    (receipt,) = await engines.deployment.receipts(1)
    assert (len(engines.plain.bodies), len(engines.fast.bodies), receipt.spec_decode.method) == (1, 0, "off")
    assert receipt.spec_decode.tokens_proposed is None


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
        ("busy", grpc.StatusCode.RESOURCE_EXHAUSTED),
        ("loading", grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_a_refusal_is_told_as_what_it_is_and_leaves_no_receipt(
    engines: Engines, fault: str, code: grpc.StatusCode
) -> None:
    stub = await engines.start()
    engines.fast.fault = fault
    failed = await failure(stub.Generate(asking(max_tokens=5)))
    assert failed.code == code
    assert failed.fields == (["sampling.top_k"] if fault == "refuse" else [])
    engines.fast.fault = None
    await stub.Generate(asking(max_tokens=5, request_id="after"))
    (receipt,) = await engines.deployment.receipts(1)
    assert receipt.request_id == "after"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", ["drop", "short", "text", "ids", "many", "garbage"])
async def test_a_broken_answer_ends_with_an_error_and_a_receipt_of_what_was_returned(
    engines: Engines, kind: str, fault: str
) -> None:
    stub = await engines.start(kind)
    engines.fast.fault = fault
    events = await streamed(stub, asking(max_tokens=5))
    returned = [token for event in events for token in event.chunk.token_ids]
    (receipt,) = await engines.deployment.receipts(1)
    assert receipt.output.finish_reason == "error"
    assert (receipt.output.tokens, receipt.output.stream_digest) == (len(returned), token_digest(returned))
    assert receipt.spec_decode.tokens_proposed is None


async def test_an_answer_that_breaks_off_before_its_first_token_is_asked_for_again(engines: Engines) -> None:
    stub = await engines.start()
    engines.fast.fault, engines.fast.after = "drop", 0
    call = asyncio.ensure_future(stub.Generate(asking(max_tokens=5)))
    await until(engines.asked)
    engines.fast.fault = None
    await call
    (receipt,) = await engines.deployment.receipts(1)
    assert (receipt.output.finish_reason, len(engines.fast.bodies)) == ("length", 2)


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
    broken = await stub.Generate(asking(max_tokens=3, request_id="broken"))
    assert broken.choices[0].finish_reason == pb.FINISH_REASON_ERROR
    engines.plain.fault = engines.fast.fault = None
    await stub.Generate(asking(max_tokens=3, request_id="meanwhile"))
    await stub.Generate(asking(max_tokens=3, request_id="after", verify=INLINE))
    before, *_, after = await engines.deployment.receipts(4)
    assert (before.engine, after.engine, after.request_id) == ("vllm/1.2.3", "vllm/1.3.0", "after")
    assert (after.spec_decode.method, after.spec_decode.verified_identical_to_off) == ("engine", True)
    profiles = await engines.profiles(2)
    assert [profiles[each.profile_cid].version for each in (before, after)] == ["1.2.3", "1.3.0"]


async def test_an_answer_to_another_prompt_is_none(engines: Engines) -> None:
    stub = await engines.start()
    engines.fast.fault = "prompt"
    answer = await stub.Generate(asking(max_tokens=3))
    assert answer.choices[0].finish_reason == pb.FINISH_REASON_ERROR

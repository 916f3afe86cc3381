"""Real engines behind the generation service. Opt-in: `make test-engines`, with KOLM_TEST_ENGINES,
a line an engine: engine, plain URL, speculating URL, weights.
"""

import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import sampling_pb2, speculation_pb2
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.model_path import model_path
from tests.integration.generation.deployment import Deployment, asking, failure


class Pair(NamedTuple):
    engine: str
    plain_url: str
    url: str
    weights: str


PAIRS = [Pair(*line.split()) for line in os.environ.get("KOLM_TEST_ENGINES", "").splitlines() if line.strip()]
if not PAIRS:
    pytest.skip("KOLM_TEST_ENGINES names no engine", allow_module_level=True)

TEXTS = (
    "What is gravity?",
    "Count from one to ten, and then count from one to ten again.",
    "Repeat after me, exactly: the 漢字 and the 🎉, the 漢字 and the 🎉, the 漢字 and the 🎉.",
    "Write a function in Python that adds two numbers.",
)


@pytest.fixture(params=PAIRS, ids=lambda pair: pair.engine)
def pair(request: pytest.FixtureRequest) -> Pair:
    found: Pair = request.param
    return found


@pytest.fixture
async def deployment(tmp_path: Path, pair: Pair) -> AsyncIterator[Deployment]:
    deployment = Deployment(tmp_path, Path(pair.weights))
    await deployment.start_ledger()
    yield deployment
    await deployment.stop()


async def started(deployment: Deployment, pair: Pair, *, weights: bool = True) -> Any:
    return await deployment.start_generation(
        engine=pair.engine, plain_url=pair.plain_url, url=pair.url, weights=pair.weights if weights else None
    )


def chat(text: str, **members: Any) -> pb.GenerateRequest:
    request = asking("", **members)
    request.messages.messages.add(role="user", content=text)
    return request


@pytest.mark.parametrize("weights", [True, False], ids=["weights", "no weights"])
async def test_answers_are_the_text_of_their_ids_and_have_receipts(
    deployment: Deployment, pair: Pair, weights: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    stub, tokenizer = await started(deployment, pair, weights=weights), Tokenizer(model_path(pair.weights))
    begun = time.monotonic()
    for text in TEXTS:
        answer = (await stub.Generate(chat(text, max_tokens=32))).choices[0]
        assert answer.finish_reason in (pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH), answer
        assert answer.text == tokenizer.decode(answer.token_ids)
    receipts = await deployment.receipts(len(TEXTS))
    told = [each.spec_decode for each in receipts]
    with capsys.disabled():
        tokens = sum(each.output.tokens for each in receipts)
        proposed = [each.tokens_proposed for each in told]
        print(f"\n{receipts[0].engine}, weights {weights}: {tokens} tokens in {time.monotonic() - begun:.0f} s, "
              f"proposed {proposed}, accepted {[each.tokens_accepted for each in told]}")  # fmt: skip


async def test_an_answer_that_ends_within_a_character_is_whole(deployment: Deployment, pair: Pair) -> None:
    stub = await started(deployment, pair)
    for most in range(1, 9):
        asked = chat("Write only emojis: 🐱🎉🐱🎉🐱🎉", max_tokens=most, ignore_eos=True)
        answer = (await stub.Generate(asked)).choices[0]
        assert (answer.finish_reason, len(answer.token_ids)) == (pb.FINISH_REASON_LENGTH, most)


async def test_what_speculation_did_is_known_before_signing(
    deployment: Deployment, pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    """An honest engine's answer is equal, or the difference has another reason. The test prints each."""
    stub = await started(deployment, pair)
    found: list[str] = []
    for text in TEXTS:
        await stub.Generate(chat(text, max_tokens=32, verify=speculation_pb2.VERIFY_MODE_INLINE))
    for receipt in await deployment.receipts(len(TEXTS)):
        block = receipt.spec_decode
        found.append(f"{block.method} {block.verified_identical_to_off or block.unverified}")
        assert (block.method, block.fallback_reason) == ("engine", None)
        assert block.verified_identical_to_off or (block.unverified or "").startswith("UNSTABLE")
        assert (receipt.prompt.cached_tokens, receipt.beside_others) == (0, False)
    with capsys.disabled():
        print(f"\n{pair.engine}, before signing: {found}")


async def test_parameters_reach_the_engine(deployment: Deployment, pair: Pair) -> None:
    stub = await started(deployment, pair)
    stopped = (await stub.Generate(chat("Count to ten in digits.", max_tokens=24, stop=["4"]))).choices[0]
    assert "4" not in stopped.text
    told = (await stub.Generate(chat("Hello!", max_tokens=3, logprobs=2))).choices[0]
    assert [len(each.top) for each in told.logprobs] == [2] * len(told.token_ids)
    warm = chat("Tell me a story.", max_tokens=8, temperature=1.0, seed=7, n=2, method="off")
    first, again = [[list(each.token_ids) for each in (await stub.Generate(warm)).choices] for _ in range(2)]
    assert (first == again, first[0] != first[1]) == (True, True)
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    structured = sampling_pb2.StructuredOutputs(json=schema)
    answer = (await stub.Generate(chat("Give me JSON.", max_tokens=48, structured_outputs=structured))).choices[0]
    assert answer.finish_reason == pb.FINISH_REASON_LENGTH or isinstance(json.loads(answer.text)["a"], int)


async def test_what_the_engine_refuses_is_named_and_leaves_no_receipt(deployment: Deployment, pair: Pair) -> None:
    if pair.engine == "llama-server":
        pytest.skip("it has no regular expressions")
    stub = await started(deployment, pair)
    structured = sampling_pb2.StructuredOutputs(regex="(((")
    failed = await failure(stub.Generate(chat("Hello!", max_tokens=8, structured_outputs=structured)))
    assert (failed.code, failed.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["sampling.structured_outputs"])
    await stub.Generate(chat("Hello!", max_tokens=8, request_id="after"))
    assert [each.request_id for each in await deployment.receipts(1)] == ["after"]


async def test_an_id_beyond_the_vocabulary_ends_no_engine(deployment: Deployment, pair: Pair) -> None:
    for weights in (True, False):
        stub = await started(deployment, pair, weights=weights)
        beyond = pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=[5, 2**30]), sampling=sampling_pb2.SamplingParams(max_tokens=2)
        )
        assert (await failure(stub.Generate(beyond))).code == grpc.StatusCode.INVALID_ARGUMENT
        await stub.Generate(chat("Hello!", max_tokens=2))
        await deployment.stop_generation()


async def test_a_caller_that_leaves_ends_the_request_there(deployment: Deployment, pair: Pair) -> None:
    stub = await started(deployment, pair)
    call = stub.GenerateStream(pb.GenerateStreamRequest(request=chat("Tell a very long story.", max_tokens=2000)))
    seen = 0
    async for event in call:
        seen += len(event.chunk.token_ids)
        if seen > 3:
            call.cancel()
            break
    (receipt,) = await deployment.receipts(1)
    assert (receipt.output.finish_reason, receipt.output.tokens < 200) == ("cancelled", True)

"""Asking the plain upstream again, without a server between: its answers, its description, its identity."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.upstream import Upstream
from services.generation.engine.request import EngineRequest, InvalidRequest, SamplingParams
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.remote import upstream
from services.generation.remote.again import PlainEngine
from services.generation.remote.answer import UpstreamError
from services.generation.remote.dialects import DIALECTS
from services.generation.remote.difference import unsteady
from services.generation.remote.upstream import UpstreamDown
from tests.fakes.upstreams import FakeUpstream, listening
from tests.unit.ledger.builders import engine_profile

PROMPT = (20, 30, 40)
REQUEST = EngineRequest("again", PROMPT, SamplingParams(max_tokens=6, temperature=0.7, seed=5), choice=1)


@pytest.fixture(params=["vllm", "sglang", "llama-server"])
async def plain(request: pytest.FixtureRequest, model: Path) -> AsyncIterator[FakeUpstream]:
    fake = FakeUpstream(request.param, Tokenizer(model), vocabulary=range(40, 80), version="1.2 of today")
    async with listening(fake):
        yield fake


async def test_it_gives_the_tokens_and_the_end_that_a_server_before_it_gives(plain: FakeUpstream) -> None:
    engine = PlainEngine(plain.kind, plain.url)
    again = await asyncio.to_thread(engine.again, REQUEST)
    assert (list(again.token_ids), again.finish_reason) == (plain.tokens(PROMPT, 6, 6), "length")
    plain.ends_after = 2
    again = await asyncio.to_thread(engine.again, REQUEST)
    assert (len(again.token_ids), again.finish_reason, again.stop_reason) == (3, "stop", None)


async def test_it_says_what_it_is_as_receipts_do(plain: FakeUpstream) -> None:
    about = await asyncio.to_thread(PlainEngine(plain.kind, plain.url).about)
    assert (about.version, about.model) == ("1.2-of-today", plain.model)


async def test_nothing_of_a_prefix_is_reused_unless_the_request_allows_it(plain: FakeUpstream) -> None:
    plain.fault = "cached"
    engine, found = PlainEngine(plain.kind, plain.url), []
    for reuse in (False, False, True, True):
        found.append((await asyncio.to_thread(engine.again, replace(REQUEST, reuse=reuse))).token_ids)
    assert [each == found[0] for each in found] == [True, True, True, False]


async def test_copies_are_computed_beside_each_other(plain: FakeUpstream) -> None:
    plain.fault = "crowded"
    engine = PlainEngine(plain.kind, plain.url)
    alone, beside = (
        await asyncio.to_thread(engine.again, REQUEST), await asyncio.to_thread(engine.together, REQUEST, 4)
    )  # fmt: skip
    assert len(beside) == 4
    assert unsteady(engine_profile(), (alone, *beside), len(alone.token_ids))


ODD = {
    "vllm": [
        '{"choices": {"a": 1}}', '{"choices": [{"token_ids": [5], "finish_reason": []}]}',
        '{"choices": [{"token_ids": [5], "text": 5}]}', '{"choices": [], "metrics": {"speculative_decoding": {}}}',
        '{"choices": [{"token_ids": [5], "logprobs": '
        '{"tokens": ["token_id:x"], "token_logprobs": [-1], "top_logprobs": [{}]}}]}',
    ],
    "sglang": ['{"output_ids": [5]}', '{"output_ids": [5], "meta_info": {}}'],
    "llama-server": ['{"tokens": [5], "stop": true}', '{"tokens": [5], "completion_probabilities": [{}]}'],
}  # fmt: skip


async def test_an_answer_in_another_form_is_an_error_of_the_upstream(plain: FakeUpstream) -> None:
    engine = PlainEngine(plain.kind, plain.url)
    for odd in (*ODD[plain.kind], "{"):
        plain.instead = odd
        with pytest.raises(UpstreamError):
            await asyncio.to_thread(engine.again, REQUEST)
    asked = upstream.Upstream(DIALECTS[plain.kind], plain.url, None, 60.0)
    with pytest.raises(UpstreamError):
        await asked.ask(DIALECTS[plain.kind].path, {})
    await asked.close()


async def test_an_engine_that_is_not_ready_says_nothing(plain: FakeUpstream) -> None:
    plain.fault = "loading"
    with pytest.raises(UpstreamDown):
        await asyncio.to_thread(PlainEngine(plain.kind, plain.url).again, REQUEST)


async def test_what_it_refuses_is_an_invalid_request(plain: FakeUpstream) -> None:
    plain.fault = "refuse"
    with pytest.raises(InvalidRequest) as caught:
        await asyncio.to_thread(PlainEngine(plain.kind, plain.url).again, REQUEST)
    assert caught.value.field == "top_k"


async def test_benchmarks_ask_it_for_the_same_tokens_several_at_once(plain: FakeUpstream) -> None:
    upstream = await asyncio.to_thread(Upstream, plain.kind, plain.url)
    found = await asyncio.to_thread(upstream.outputs, [REQUEST] * 3, 3)
    assert (upstream.name, found) == (f"{plain.kind} 1.2-of-today", [tuple(plain.tokens(PROMPT, 6, 6))] * 3)

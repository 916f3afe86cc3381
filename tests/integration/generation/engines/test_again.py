"""Asking the plain upstream again: the same, another result because of speculation, or none that it stands by."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.remote.again import Comparison, PlainEngine
from services.generation.remote.upstream import UpstreamDown
from tests.fakes.upstreams import FakeUpstream, listening

KINDS = ("vllm", "sglang", "llama-server")
PROMPT = (20, 30, 40)
REQUEST = EngineRequest("again", PROMPT, SamplingParams(max_tokens=6, temperature=0.7, seed=5), choice=1)


@pytest.fixture(params=KINDS)
async def plain(request: pytest.FixtureRequest, model: Path) -> AsyncIterator[FakeUpstream]:
    fake = FakeUpstream(request.param, Tokenizer(model), vocabulary=range(40, 80))
    async with listening(fake):
        yield fake


async def held(plain: FakeUpstream, served: list[int], *, whole: bool = True) -> Comparison:
    engine = PlainEngine(plain.kind, plain.url)
    return await asyncio.to_thread(engine.held_against, REQUEST, served, plain.model, whole=whole)


async def test_what_the_plain_engine_gives_again_is_the_same(plain: FakeUpstream) -> None:
    served = plain.tokens(PROMPT, 6, 6)
    assert await held(plain, served) == Comparison("SAME")
    assert await held(plain, served[:3], whole=False) == Comparison("SAME")


async def test_a_deviation_has_its_first_position_and_both_tokens(plain: FakeUpstream) -> None:
    right = plain.tokens(PROMPT, 6, 6)
    found = await held(plain, [*right[:4], 7, 7])
    assert (found.outcome, found.position, found.served, found.plain) == ("DEVIATION", 4, 7, right[4])
    assert (await held(plain, right[:4])).position == 4


async def test_an_engine_that_disagrees_with_itself_convicts_nobody(plain: FakeUpstream) -> None:
    plain.fault = "unsteady"
    assert (await held(plain, plain.tokens(PROMPT, 6, 6))).outcome == "UNSTABLE"


async def test_an_engine_that_is_not_there_says_nothing(plain: FakeUpstream) -> None:
    plain.fault = "loading"
    with pytest.raises(UpstreamDown):
        await held(plain, [1])

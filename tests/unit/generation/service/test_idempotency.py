"""One key, one generation: also for failures, for callers that leave, and when memory runs out."""

from __future__ import annotations

import asyncio

import pytest

from kolm.generation.v1 import generation_pb2 as pb
from services.generation.idempotency import IdempotentResponses


class Generated:
    """Counts generations; each waits until it is let go."""

    def __init__(self) -> None:
        self.count = 0
        self.began = asyncio.Event()
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> pb.GenerateResponse:
        self.count += 1
        self.began.set()
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return pb.GenerateResponse(choices=[pb.Choice(index=self.count)])


def keyed(key: str, prompt: str = "x") -> pb.GenerateRequest:
    return pb.GenerateRequest(idempotency_key=key, prompt=prompt)


async def test_a_generation_outlives_the_caller_that_began_it() -> None:
    responses, generated = IdempotentResponses(8), Generated()
    first = asyncio.ensure_future(responses.once(keyed("a"), generated))
    await generated.began.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    generated.go.set()
    assert (await responses.once(keyed("a"), generated)).choices[0].index == 1
    assert generated.count == 1


async def test_a_failure_is_told_to_all_who_wait_and_then_forgotten() -> None:
    responses, generated = IdempotentResponses(8), Generated()
    generated.error = RuntimeError("full")
    both = [asyncio.ensure_future(responses.once(keyed("a"), generated)) for _ in range(2)]
    generated.go.set()
    assert [str(each) for each in await asyncio.gather(*both, return_exceptions=True)] == ["full", "full"]
    generated.error = None
    assert (await responses.once(keyed("a"), generated)).choices[0].index == 2


async def test_the_longest_unused_response_goes_first() -> None:
    responses, generated = IdempotentResponses(2), Generated()
    generated.go.set()
    for key in ("a", "b", "a", "c"):
        await responses.once(keyed(key), generated)
    assert generated.count == 3
    await responses.once(keyed("a"), generated)
    assert generated.count == 3
    await responses.once(keyed("b"), generated)
    assert generated.count == 4

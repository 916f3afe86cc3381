"""One key, one generation: also for failures, for callers that leave, and when memory runs out."""

from __future__ import annotations

import asyncio

import pytest

from kolm.generation.v1 import generation_pb2 as pb
from services.generation.api.servicer import IdempotentResponses


class Generated:
    """Counts generations; each waits until it is let go."""

    def __init__(self) -> None:
        self.count = 0
        self.began = asyncio.Event()
        self.go = asyncio.Event()
        self.error: Exception | None = None
        self.text = ""

    async def __call__(self) -> pb.GenerateResponse:
        self.count = number = self.count + 1
        self.began.set()
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return pb.GenerateResponse(choices=[pb.Choice(index=number, text=self.text)])


def keyed(key: str, prompt: str = "x") -> pb.GenerateRequest:
    return pb.GenerateRequest(idempotency_key=key, prompt=prompt)


async def test_a_generation_outlives_the_caller_that_began_it() -> None:
    responses, generated = IdempotentResponses(8, 1 << 20), Generated()
    first = asyncio.ensure_future(responses.once(keyed("a"), generated))
    await generated.began.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    generated.go.set()
    assert (await responses.once(keyed("a"), generated)).choices[0].index == 1
    assert generated.count == 1


async def test_a_failure_is_told_to_all_who_wait_and_then_forgotten() -> None:
    responses, generated = IdempotentResponses(8, 1 << 20), Generated()
    generated.error = RuntimeError("full")
    both = [asyncio.ensure_future(responses.once(keyed("a"), generated)) for _ in range(2)]
    generated.go.set()
    assert [str(each) for each in await asyncio.gather(*both, return_exceptions=True)] == ["full", "full"]
    generated.error = None
    assert (await responses.once(keyed("a"), generated)).choices[0].index == 2


async def test_the_longest_unused_response_goes_first() -> None:
    responses, generated = IdempotentResponses(2, 1 << 20), Generated()
    generated.go.set()
    for key in ("a", "b", "a", "c"):
        await responses.once(keyed(key), generated)
    assert generated.count == 3
    await responses.once(keyed("a"), generated)
    assert generated.count == 3
    await responses.once(keyed("b"), generated)
    assert generated.count == 4


async def test_long_responses_are_kept_in_so_many_bytes_the_longest_unused_out_first() -> None:
    responses, generated = IdempotentResponses(100, 50_000), Generated()
    generated.go.set()
    generated.text = "x" * 20_000
    for key in ("a", "b", "a", "c"):
        await responses.once(keyed(key), generated)
    assert generated.count == 3
    assert (await responses.once(keyed("a"), generated)).choices[0].text == generated.text
    await responses.once(keyed("c"), generated)
    assert generated.count == 3
    await responses.once(keyed("b"), generated)
    assert generated.count == 4


async def test_a_response_larger_than_all_memory_is_given_but_not_kept_and_drives_out_none() -> None:
    responses, generated = IdempotentResponses(100, 10_000), Generated()
    generated.go.set()
    await responses.once(keyed("small"), generated)
    generated.text = "x" * 20_000
    for count in (2, 3):
        assert (await responses.once(keyed("large"), generated)).choices[0].text == generated.text
        assert generated.count == count
    generated.text = ""
    await responses.once(keyed("small"), generated)
    assert generated.count == 3


async def test_what_is_under_way_is_never_given_up() -> None:
    responses, slow, quick = IdempotentResponses(1, 3000), Generated(), Generated()
    waiting = [asyncio.ensure_future(responses.once(keyed(key), slow)) for key in ("a", "b")]
    await slow.began.wait()
    quick.go.set()
    for key in ("c", "d"):
        await responses.once(keyed(key), quick)
    again = asyncio.ensure_future(responses.once(keyed("a"), slow))
    slow.go.set()
    assert [each.choices[0].index for each in await asyncio.gather(*waiting, again)] == [1, 2, 1]

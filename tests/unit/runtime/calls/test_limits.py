"""Limits of a server's calls, without a server."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import AsyncExitStack, ExitStack

import pytest

from services.runtime.errors import DeadlineExceeded, InvalidArgument, ResourceExhausted, without_frames
from services.runtime.limits import CallLimits, Limits

LARGE = 100 * 1024
MEMORY = 8 * LARGE
"""What it may take once it is decoded."""


def test_calls_are_bounded_for_each_caller_and_in_all() -> None:
    limits = CallLimits(Limits(calls=3, calls_of_caller=2))
    with ExitStack() as running:
        for _ in range(2):
            running.enter_context(limits.call("one"))
        with pytest.raises(ResourceExhausted, match="you have 2 calls"), limits.call("one"):
            pass
        running.enter_context(limits.call("other"))
        with pytest.raises(ResourceExhausted, match="this server has 3 calls") as caught, limits.call("third"):
            pass
        assert caught.value.retry_after
        with limits.call("third", vital=True):  # a health check
            pass
    with limits.call("one"), limits.call("one"), limits.call("third"):
        pass


def test_streams_of_requests_are_bounded_for_each_caller() -> None:
    limits = CallLimits(Limits(streams_of_caller=1))
    with ExitStack() as running:
        for caller, streamed in (("one", True), ("one", False), ("other", True)):
            running.enter_context(limits.call(caller, streamed=streamed))
        with pytest.raises(ResourceExhausted, match="you have 1 streams"), limits.call("one", streamed=True):
            pass
    with limits.call("one", streamed=True):
        pass


async def test_a_caller_reads_a_few_requests_at_a_time_and_others_do_not_wait_for_him() -> None:
    limits = CallLimits(Limits(requests_being_read=2))
    async with AsyncExitStack() as reading:
        for _ in range(2):
            await reading.enter_async_context(limits.reading("one"))
        third = asyncio.ensure_future(_read(limits, "one"))
        await _read(limits, "other")
        assert not third.done()
    await third


async def _read(limits: CallLimits, caller: str) -> None:
    async with limits.reading(caller):
        pass


async def test_a_request_that_does_not_come_is_not_waited_for() -> None:
    limits = CallLimits(Limits(reading_seconds=0.01, idle_seconds=0.01))
    for waiting in (limits.reading("one"), limits.awaiting()):
        with pytest.raises(DeadlineExceeded) as caught:
            async with waiting:
                await asyncio.Event().wait()
        assert caught.value.reason == "REQUEST_TOO_SLOW"


async def test_large_requests_wait_for_memory_in_turn_and_small_ones_do_not_wait() -> None:
    limits = CallLimits(Limits(request_bytes=2 * MEMORY))
    order: list[str] = []

    async def answer(name: str, size: int) -> None:
        async with limits.holding(name, size):
            order.append(name)

    async with limits.holding("first", LARGE):
        waiting = [
            asyncio.ensure_future(answer("larger than all", 5 * LARGE)),
            asyncio.ensure_future(answer("b", LARGE)),
        ]
        await answer("small", 1)
        assert order == ["small"]
    await asyncio.gather(*waiting)
    assert order == ["small", "larger than all", "b"]


async def test_a_caller_whose_large_requests_take_long_leaves_memory_for_others() -> None:
    limits = CallLimits(Limits(request_bytes=8 * MEMORY))
    async with AsyncExitStack() as held:
        for _ in range(2):
            await held.enter_async_context(limits.holding("one", LARGE))
        third = asyncio.ensure_future(_hold(limits, "one"))
        await _hold(limits, "other")
        for _ in range(9):
            await asyncio.sleep(0)
        assert not third.done()  # though there is memory
    await third


async def test_one_that_gives_up_waiting_for_memory_leaves_it_to_the_next() -> None:
    limits = CallLimits(Limits(request_bytes=MEMORY))
    for callers in (("a", "b", "c"), ("a", "a", "a")):
        async with limits.holding(callers[0], LARGE):
            cut, next_one = (asyncio.ensure_future(_hold(limits, caller)) for caller in callers[1:])
            await asyncio.sleep(0)
            cut.cancel()
        await next_one
        assert cut.cancelled()


async def _hold(limits: CallLimits, caller: str) -> None:
    async with limits.holding(caller, LARGE):
        pass


def test_an_error_that_is_kept_does_not_keep_the_request() -> None:
    class Request:
        """As large as it likes."""

    def refuse() -> tuple[InvalidArgument, weakref.ref[Request]]:
        request = Request()
        try:
            try:
                raise ValueError(request)
            except ValueError:
                raise InvalidArgument("request", "wrong") from None
        except InvalidArgument as error:
            return without_frames(error), weakref.ref(request)

    gc.disable()
    try:
        error, request = refuse()
        assert request() is None
        assert error.reason == "INVALID_ARGUMENT"
    finally:
        gc.enable()

"""Calls of a server: limits, pages of lists, errors on the wire."""

import asyncio
import gc
import weakref
from contextlib import AsyncExitStack, ExitStack
from types import TracebackType
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from hypothesis import given
from hypothesis import strategies as st

from services.runtime.calls import Requests, page_position, page_size, page_token
from services.runtime.errors import (
    DeadlineExceeded,
    InvalidArgument,
    KolmError,
    NotFound,
    ResourceExhausted,
    to_status,
    without_frames,
)
from services.runtime.limits import CallLimits, Limits

LARGE = 100 * 1024
MEMORY = 8 * LARGE
"""The most that a message may take once it is decoded."""


def test_calls_are_bounded_for_each_caller_and_in_all() -> None:
    limits = CallLimits(Limits(calls=3, calls_of_caller=2))
    with ExitStack() as running:
        for _ in range(2):
            running.enter_context(limits.call("one"))
        with pytest.raises(ResourceExhausted, check=lambda error: error.reason == "TOO_MANY_CALLS"), limits.call("one"):
            pass
        running.enter_context(limits.call("other"))
        with pytest.raises(ResourceExhausted) as caught, limits.call("third"):
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
        with pytest.raises(ResourceExhausted), limits.call("one", streamed=True):
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


class Messages:
    """The context of a call whose messages are there already; then it ends, or is silent."""

    def __init__(self, messages: list[bytes], *, ends: bool) -> None:
        self._messages, self._ends = messages, ends

    async def read(self) -> Any:
        if not self._messages and not self._ends:
            await asyncio.Event().wait()
        return self._messages.pop(0) if self._messages else grpc.aio.EOF


async def _read_all(limits: CallLimits, streamed: bool, messages: Any) -> list[bytes]:
    async with Requests("/service/Method", streamed, None, limits).of(messages, "one") as found:
        return [each async for each in found] if streamed else [found]


@pytest.mark.parametrize(("streamed", "messages"), [(False, []), (True, []), (True, [b"first"])])
async def test_a_request_that_does_not_come_is_not_waited_for(streamed: bool, messages: list[bytes]) -> None:
    limits = CallLimits(Limits(reading_seconds=0.01, idle_seconds=0.01))
    with pytest.raises(DeadlineExceeded, check=lambda error: error.reason == "REQUEST_TOO_SLOW"):
        await _read_all(limits, streamed, Messages(messages, ends=False))


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_wait_for_memory_has_no_time_limit(streamed: bool) -> None:
    limits = CallLimits(Limits(request_bytes=MEMORY, reading_seconds=0.01, idle_seconds=0.01))
    async with limits.holding("other", LARGE):
        reading = asyncio.ensure_future(_read_all(limits, streamed, Messages([bytes(LARGE)], ends=True)))
        await asyncio.wait({reading}, timeout=0.1)
    assert await reading == [bytes(LARGE)]


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


POSITIONS = st.integers(0, 2**64 - 1)


@given(POSITIONS, st.binary(max_size=40))
def test_a_token_leads_back_to_its_position(position: int, filters: bytes) -> None:
    assert page_position(page_token("receipts", filters, position), "receipts", filters) == position


def test_the_empty_token_is_the_first_page() -> None:
    assert page_position("", "receipts", b"tenant=a") == 0


@given(POSITIONS)
def test_a_token_of_another_list_or_filter_is_refused(position: int) -> None:
    token = page_token("receipts", b"tenant=a", position)
    for kind, filters in (("verdicts", b"tenant=a"), ("receipts", b"tenant=b"), ("receiptstenant=a", b"")):
        with pytest.raises(InvalidArgument) as caught:
            page_position(token, kind, filters)
        assert caught.value.field == "page_token"


@given(st.text(min_size=1, max_size=60))
def test_junk_is_refused_and_never_crashes(junk: str) -> None:
    with pytest.raises(InvalidArgument):
        page_position(junk, "receipts", b"")


@given(POSITIONS, st.integers(0, 35), st.integers(0, 25))
def test_a_token_with_one_character_changed_is_refused(position: int, place: int, shift: int) -> None:
    token = page_token("receipts", b"", position)
    changed = token[:place] + chr(ord("A") + shift) + token[place + 1 :]
    if changed != token:
        with pytest.raises(InvalidArgument):
            page_position(changed, "receipts", b"")


@pytest.mark.parametrize(("requested", "expected"), [(0, 100), (1, 1), (1000, 1000), (4_000_000_000, 1000)])
def test_page_sizes_have_a_default_and_a_maximum(requested: int, expected: int) -> None:
    assert page_size(requested) == expected


def _details(error: KolmError, *kinds: type) -> list:  # type: ignore[type-arg]
    found = [kind() for kind in kinds]
    status = to_status(error, "r1")
    assert len(status.details) == len(kinds)
    assert all(detail.Unpack(kind) for detail, kind in zip(status.details, found, strict=True))
    return found


def test_a_wrong_field_is_named_by_its_path() -> None:
    error = InvalidArgument("spec_decode.k", "expected 1 to 16, got 0")
    info, request = _details(error, error_details_pb2.ErrorInfo, error_details_pb2.BadRequest)
    assert (info.domain, info.reason, info.metadata["request_id"]) == ("kolm", "INVALID_ARGUMENT", "r1")
    assert [(each.field, each.description) for each in request.field_violations] == [
        ("spec_decode.k", "expected 1 to 16, got 0")
    ]
    assert to_status(error, "r1").code == grpc.StatusCode.INVALID_ARGUMENT.value[0]


def test_a_full_queue_says_when_to_come_back() -> None:
    error = ResourceExhausted("the queue is full", retry_after=0.25)
    _, retry = _details(error, error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo)
    assert retry.retry_delay.ToMilliseconds() == 250


def test_a_missing_resource_is_named() -> None:
    _, resource = _details(NotFound("receipt", "abc"), error_details_pb2.ErrorInfo, error_details_pb2.ResourceInfo)
    assert (resource.resource_type, resource.resource_name) == ("receipt", "abc")


@given(st.text(st.characters(), max_size=3000))
def test_any_text_fits_into_grpc_metadata(text: str) -> None:
    status = to_status(InvalidArgument(text, text), "r" * 128)
    percent_encoded = 3 * len(status.message.encode())
    assert status.ByteSize() * 4 / 3 + percent_encoded < 8000


class Request:
    """A megabyte."""


def test_a_kept_error_keeps_no_request_also_if_other_code_holds_its_traceback() -> None:
    refused: list[weakref.ref[Request]] = []

    def refuse() -> None:
        request = Request()
        refused.append(weakref.ref(request))
        try:
            raise ValueError(request)
        except ValueError:
            raise InvalidArgument("request", "expected less") from None

    held: TracebackType | None = None
    gc.disable()
    try:
        try:
            refuse()
        except InvalidArgument as error:
            held, kept = error.__traceback__, without_frames(error)
        assert refused[0]() is None
        assert held is not None
        assert kept.reason == "INVALID_ARGUMENT"
    finally:
        gc.enable()

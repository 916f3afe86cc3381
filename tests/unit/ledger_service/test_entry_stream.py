"""One stream of entries, with a ledger that answers on the test's command."""

import asyncio
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

import pytest

from kolm.ledger.v1 import ledger_pb2
from ledger.errors import Conflict, StoreError
from ledger.log.writer import Appended
from services.ledger.entry_stream import MOST_ENTRIES, EntryStream, Window
from services.ledger.intake import Answer
from services.runtime.errors import Unavailable

ONE = ledger_pb2.AppendEntriesRequest(entries=[ledger_pb2.NewEntry(envelope=b"{}")])


class Ledger:
    """Takes everything and answers nothing by itself."""

    def __init__(self) -> None:
        self.read = 0
        self.waiting: list[asyncio.Future[list[Answer]]] = []

    async def requests(self, count: int) -> AsyncIterator[ledger_pb2.AppendEntriesRequest]:
        for _ in range(count):
            self.read += 1
            yield ONE

    def submit(self, _: ledger_pb2.AppendEntriesRequest) -> asyncio.Future[list[Answer]]:
        self.waiting.append(asyncio.get_running_loop().create_future())
        return self.waiting[-1]

    def answer(self, number: int) -> None:
        self.waiting[number].set_result([Appended(number, b"{}", b"note", 1, (), 0)])


async def settled() -> None:
    for _ in range(4 * MOST_ENTRIES):
        await asyncio.sleep(0)


async def test_no_more_is_read_than_may_be_in_work_and_more_once_it_is_answered() -> None:
    ledger = Ledger()
    stream = EntryStream(ledger.requests(5 * MOST_ENTRIES), ledger.submit)
    answers = stream.answers()
    first = asyncio.ensure_future(anext(answers))
    await settled()
    assert (ledger.read, len(ledger.waiting)) == (MOST_ENTRIES + 1, MOST_ENTRIES)
    for number in range(10):
        ledger.answer(number)
    assert (await first).results[0].appended.index == 0
    for number in range(1, 10):
        assert (await anext(answers)).results[0].appended.index == number
    await settled()
    # An answer counts as given when the next one is asked for: until then its caller may not have taken it.
    assert len(ledger.waiting) == MOST_ENTRIES + 9
    await answers.aclose()


async def test_requests_can_be_closed_once_a_stream_has_failed() -> None:
    async def one_and_no_more() -> AsyncGenerator[ledger_pb2.AppendEntriesRequest]:
        yield ONE
        await asyncio.get_running_loop().create_future()

    def fails(_: ledger_pb2.AppendEntriesRequest) -> asyncio.Future[list[Answer]]:
        answer = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.01, answer.set_exception, Unavailable("away"))
        return answer

    requests = one_and_no_more()
    with pytest.raises(Unavailable):
        async with aclosing(requests), aclosing(EntryStream(requests, fails).answers()) as answers:
            await anext(answers)


async def test_answers_keep_the_order_of_the_requests_whatever_comes_first() -> None:
    ledger = Ledger()
    stream = EntryStream(ledger.requests(3), ledger.submit)
    reading = asyncio.ensure_future(_all(stream))
    await settled()
    for number in (2, 1, 0):
        ledger.answer(number)
    assert await reading == [0, 1, 2]


async def _all(stream: EntryStream) -> list[int]:
    return [answer.results[0].appended.index async for answer in stream.answers()]


async def test_a_request_that_was_taken_is_not_kept_until_the_next_one_comes() -> None:
    class Request:
        entries = ONE.entries

        def ByteSize(self) -> int:
            return 4

    sent: list[weakref.ref[Request]] = []

    async def requests() -> AsyncIterator[Request]:
        request = Request()
        sent.append(weakref.ref(request))
        yield request
        del request
        await asyncio.Event().wait()

    ledger = Ledger()
    stream = EntryStream(requests(), ledger.submit)  # type: ignore[arg-type]
    reading = asyncio.ensure_future(_all(stream))
    await settled()
    assert ledger.waiting
    assert sent[0]() is None
    reading.cancel()


async def test_an_error_of_one_entry_is_its_result_and_an_error_of_the_ledger_ends_the_stream() -> None:
    ledger = Ledger()
    answers = EntryStream(ledger.requests(3), ledger.submit).answers()
    first = asyncio.ensure_future(anext(answers))
    await settled()
    ledger.waiting[0].set_result([Conflict("entry 7 holds another")])
    ledger.waiting[1].set_result([StoreError("the disk is full")])
    assert (await first).results[0].error.message.startswith("entry 7")
    with pytest.raises(Unavailable):
        await anext(answers)


async def test_a_stopped_stream_answers_what_it_took_and_then_says_so() -> None:
    ledger = Ledger()
    stream = EntryStream(_endless(), ledger.submit)
    answers = stream.answers()
    first = asyncio.ensure_future(anext(answers))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    stream.stop()
    taken = len(ledger.waiting)
    for number in range(taken):
        ledger.answer(number)
    assert (await first).results[0].appended.index == 0
    for number in range(1, taken):
        assert (await anext(answers)).results[0].appended.index == number
    with pytest.raises(Unavailable):
        await anext(answers)


async def _endless() -> AsyncIterator[ledger_pb2.AppendEntriesRequest]:
    while True:
        yield ONE


async def test_an_unforeseen_failure_is_raised_and_ends_no_stream_as_if_all_were_well() -> None:
    def full(_: Sequence[ledger_pb2.NewEntry]) -> asyncio.Future[list[Answer]]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await anext(EntryStream(Ledger().requests(1), full).answers())


async def entered(window: Window, entries: int, size: int) -> bool:
    """Whether there is room now; otherwise the wait is cancelled."""
    waiting = asyncio.ensure_future(window.enter(entries, size))
    await asyncio.sleep(0)
    return waiting.done() or waiting.cancel() is False


async def test_room_is_bounded_in_entries_and_in_bytes_and_comes_back() -> None:
    window = Window(10, 1000)
    took = [await entered(window, 6, 100), await entered(window, 5, 1), await entered(window, 4, 901)]
    took += [await entered(window, 4, 900), await entered(window, 1, 0)]
    window.leave(6, 100)
    assert [*took, await entered(window, 6, 100)] == [True, False, False, True, False, True]


async def test_a_request_larger_than_all_the_room_gets_in_alone() -> None:
    window = Window(10, 1000)
    assert [await entered(window, 50, 9000), await entered(window, 1, 1)] == [True, False]


async def test_a_waiting_caller_gets_in_when_another_leaves() -> None:
    window = Window(1, 1000)
    await window.enter(1, 1)
    waiting = [asyncio.ensure_future(window.enter(1, 1)) for _ in range(2)]
    for each in waiting:
        await asyncio.sleep(0)
        assert not each.done()
        window.leave(1, 1)
        await asyncio.wait_for(each, 60)

"""Entries on their way in: checked, then queued for the sequencer; its answers on their way back to the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import grpc

from kolm.ledger.v1 import ledger_pb2
from ledger.documents.erasure import Erasure, Retention
from ledger.errors import Backpressure, LedgerError
from ledger.log.admission import Admitted
from ledger.log.sequencer import Sequencer
from ledger.log.writer import Appended
from services.client import tracing
from services.client.ledger import log_wire
from services.runtime.credentials import Principal
from services.runtime.errors import KolmError, PermissionDenied, without_frames

_Value = TypeVar("_Value")


class FutureBridge:
    """Turns futures of other threads into awaitables of one event loop.

    A sequencer answers hundreds of callers with one transaction. `asyncio.wrap_future` would wake the loop through a
    pipe for each of them; here the first one does, and the others are found in the queue. `delivered` runs on the loop
    after each round.
    """

    def __init__(self, delivered: Callable[[], None]) -> None:
        self._delivered = delivered
        self._done: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._woken = False

    def awaitable(self, answer: Future[_Value]) -> asyncio.Future[_Value]:
        """An awaitable for the result of `answer`. Cancelling it only ends the wait."""
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[_Value] = loop.create_future()

        def arrived(done: Future[_Value]) -> None:
            self._done.append((mine, done))
            if not self._woken:  # a race at worst wakes the loop twice
                self._woken = True
                loop.call_soon_threadsafe(self._deliver)

        answer.add_done_callback(arrived)
        return mine

    def _deliver(self) -> None:
        self._woken = False  # before looking: a later answer wakes the loop again
        while self._done:
            mine, done = self._done.popleft()
            if mine.done():
                continue
            error = done.exception()
            if error is None:
                mine.set_result(done.result())
            else:
                mine.set_exception(error)
        self._delivered()


class Growth:
    """Many tasks wait, one call wakes them all. On one event loop.

    Take `next()` before looking at the log and wait for it after: growth in between is then never missed.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Set at the first growth from now on."""
        return self._event

    def announce(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()


def traced(answer: asyncio.Future[Appended], traceparent: str) -> asyncio.Future[Appended]:
    """`answer`, with a span from here until it comes, below the one that `traceparent` names."""
    if not (traceparent and tracing.in_use()):
        return answer
    span = tracing.begun("kolm.ledger.append", "INTERNAL", tracing.extracted({tracing.TRACEPARENT: traceparent}))

    def came(done: asyncio.Future[Appended]) -> None:
        if done.cancelled() or done.exception() is not None:
            tracing.end(span, grpc.StatusCode.ABORTED)
        else:
            span.set_attribute("kolm.ledger.index", done.result().index)
            tracing.end(span, grpc.StatusCode.OK)

    answer.add_done_callback(came)
    return answer


_LARGE_BYTES = 64 * 1024
_THREADS = 2
"""Threads that check entries. Ed25519 releases the interpreter for a third of that time."""

_Append = ledger_pb2.AppendEntryRequest | ledger_pb2.NewEntry
_Checked = Admitted | KolmError | LedgerError


class Intake:
    """On one event loop; `growth` is announced there whenever entries have been written."""

    def __init__(self, sequencer: Sequencer, growth: Growth) -> None:
        self._sequencer = sequencer
        self._growth = growth
        # Also for a caller that has gone by then: its entry is in the log, and watchers wait for it.
        self._answers = FutureBridge(growth.announce)
        self._threads = ThreadPoolExecutor(_THREADS, "ledger-intake")

    async def one(self, request: _Append, caller: Principal) -> asyncio.Future[Appended]:
        """Check and queue an entry. Raises FormatError, SignatureError, Backpressure, Stopped, PermissionDenied.
        A small entry is checked on the event loop: handing it to a thread takes as long.
        """
        if request.ByteSize() <= _LARGE_BYTES:
            return traced(self.queue(self._admitted(request, caller)), request.traceparent)
        loop = asyncio.get_running_loop()
        admitted = await loop.run_in_executor(self._threads, self._admitted, request, caller)
        return traced(self.queue(admitted), request.traceparent)

    async def many(self, requests: Sequence[_Append], caller: Principal) -> list[asyncio.Future[Appended]]:
        """Check and queue entries, in order. The future of an entry raises the errors of `one`, except for
        Backpressure: where the queue is full, this waits for room.
        """
        loop = asyncio.get_running_loop()
        checked = await loop.run_in_executor(self._threads, self._checked, requests, caller)
        pairs = zip(checked, requests, strict=True)
        return [traced(await self._queued(each), request.traceparent) for each, request in pairs]

    def queue(self, admitted: Admitted) -> asyncio.Future[Appended]:
        """Queue a checked envelope. Raises Backpressure, Stopped."""
        return self._answers.awaitable(self._sequencer.submit(admitted))

    def _checked(self, requests: Sequence[_Append], caller: Principal) -> list[_Checked]:
        checked: list[_Checked] = []
        for request in requests:
            try:
                checked.append(self._admitted(request, caller))
            except (KolmError, LedgerError) as error:
                checked.append(without_frames(error))
        return checked

    def _admitted(self, request: _Append, caller: Principal) -> Admitted:
        """Content is read once the receipt's signature holds: a million ids take ten times their bytes."""
        admitted = self._sequencer.admit(request.envelope)
        if isinstance(admitted.document, Erasure | Retention):
            require_operator(caller)
        return admitted.with_content(log_wire.content(request.content)) if request.HasField("content") else admitted

    async def _queued(self, checked: _Checked) -> asyncio.Future[Appended]:
        try:
            if isinstance(checked, Admitted):
                return await self._queued_when_there_is_room(checked)
        except LedgerError as error:
            checked = error
        refused: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        refused.set_exception(checked)
        return refused

    async def _queued_when_there_is_room(self, admitted: Admitted) -> asyncio.Future[Appended]:
        while True:
            grown = self._growth.next()
            try:
                return self.queue(admitted)
            except Backpressure as full:
                with suppress(TimeoutError):
                    await asyncio.wait_for(grown.wait(), full.retry_after)


def require_operator(caller: Principal) -> None:
    """Raises PermissionDenied."""
    if "operate" not in caller.roles:
        refused = f"an entry that erases content needs the role operate, which {caller.name} lacks"
        raise PermissionDenied(refused, reason="ROLE_MISSING")

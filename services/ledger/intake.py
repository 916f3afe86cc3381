"""Entries on their way in: checked, then queued for the sequencer; its answers on their way back to the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from kolm.ledger.v1 import ledger_pb2
from ledger.documents.erasure import Erasure, Retention
from ledger.errors import Backpressure, LedgerError
from ledger.log import sequencer
from ledger.log.admission import Admitted
from ledger.log.sequencer import Sequencer
from ledger.log.writer import Appended
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


Answer = Appended | LedgerError | KolmError
"""The place and proof of an entry, or why it has none."""


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

    async def one(self, request: _Append, caller: Principal) -> Appended:
        """Check an entry and append it. Raises LedgerError, PermissionDenied. A small entry is checked on the event
        loop: handing it to a thread takes as long.
        """
        if request.ByteSize() <= _LARGE_BYTES:
            admitted = _admitted(request, caller, self._sequencer.admit)
        else:
            loop, admit = asyncio.get_running_loop(), self._sequencer.admit
            admitted = await loop.run_in_executor(self._threads, _admitted, request, caller, admit)
        return await self.queue(admitted)

    async def many(self, requests: Sequence[_Append], caller: Principal) -> asyncio.Future[list[Answer]]:
        """Check and queue entries, in order; then there will be an answer for each: what `one` returns or raises.
        Where the queue is full, this waits for room, and no answer is Backpressure.
        """
        loop = asyncio.get_running_loop()
        checked = await loop.run_in_executor(self._threads, self._checked, requests, caller)
        admitted = [each for each in checked if isinstance(each, Admitted)]
        most = self._sequencer.most_together
        groups = [await self._queued(admitted[at : at + most]) for at in range(0, len(admitted), most)]
        return asyncio.ensure_future(_answered(checked, groups))

    def queue(self, admitted: Admitted) -> asyncio.Future[Appended]:
        """Queue a checked envelope. Raises Backpressure, Stopped."""
        return self._answers.awaitable(self._sequencer.submit(admitted))

    def _checked(self, requests: Sequence[_Append], caller: Principal) -> list[_Checked]:
        checked: list[_Checked] = []
        admit = self._sequencer.admission()
        for request in requests:
            try:
                checked.append(_admitted(request, caller, admit))
            except (KolmError, LedgerError) as error:
                checked.append(without_frames(error))
        return checked

    async def _queued(self, admitted: Sequence[Admitted]) -> asyncio.Future[list[sequencer.Answer]]:
        """Some that go together, once there is room for them."""
        while True:
            grown = self._growth.next()
            try:
                return self._answers.awaitable(self._sequencer.submit_all(admitted))
            except Backpressure as full:
                with suppress(TimeoutError):
                    await asyncio.wait_for(grown.wait(), full.retry_after)
            except LedgerError as error:
                refused: asyncio.Future[list[sequencer.Answer]] = asyncio.get_running_loop().create_future()
                refused.set_result([error] * len(admitted))
                return refused


def _admitted(request: _Append, caller: Principal, admit: Callable[[bytes], Admitted]) -> Admitted:
    """Content is read once the receipt's signature holds: a million ids take ten times their bytes."""
    admitted = admit(request.envelope)
    if isinstance(admitted.document, Erasure | Retention):
        require_operator(caller)
    return admitted.with_content(log_wire.content(request.content)) if request.HasField("content") else admitted


async def _answered(
    checked: Sequence[_Checked], groups: Sequence[asyncio.Future[list[sequencer.Answer]]]
) -> list[Answer]:
    """The answers of the groups in the places of those that were queued, errors where they are."""
    written = iter([answer for group in groups for answer in await group])
    return [next(written) if isinstance(each, Admitted) else each for each in checked]


def require_operator(caller: Principal) -> None:
    """Raises PermissionDenied."""
    if "operate" not in caller.roles:
        refused = f"an entry that erases content needs the role operate, which {caller.name} lacks"
        raise PermissionDenied(refused, reason="ROLE_MISSING")

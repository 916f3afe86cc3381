"""The intake of entries: they are checked and queued for the sequencer, whose answers return to the event loop."""

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
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log import sequencer
from ledger.log.admission import Admitted
from ledger.log.sequencer import Sequencer
from ledger.log.writer import Appended
from services.ledger.admission_process import AdmissionProcess, SharedQuestions, admitted_entry
from services.runtime.credentials import Principal
from services.runtime.errors import KolmError, PermissionDenied, without_frames

_Value = TypeVar("_Value")

Answer = Appended | LedgerError | KolmError
"""The index and proof of an entry, or its error."""

Submit = Callable[[ledger_pb2.AppendEntriesRequest], asyncio.Future[list[Answer]]]
"""Takes a request and returns an answer for each entry."""

_LARGE_BYTES = 64 * 1024
_THREADS = 2
"""Threads that check entries. Ed25519 releases the interpreter for a third of that time."""

_FOR_PROCESS = 16
"""The least entries of a request, or simultaneous calls, for the checking process: for fewer, the transfer takes as
long as the check.
"""

_Append = ledger_pb2.AppendEntryRequest | ledger_pb2.NewEntry
_Checked = Admitted | KolmError | LedgerError


class FutureBridge:
    """Turns futures of other threads into awaitables of one event loop.

    A sequencer answers hundreds of callers with one transaction. `asyncio.wrap_future` would wake the loop through a
    pipe for each of them; here the first one wakes it, and the others wait in the queue. `delivered` runs on the loop
    after each round.
    """

    def __init__(self, delivered: Callable[[], None]) -> None:
        self._delivered = delivered
        self._done: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._woken = False

    def awaitable(self, answer: Future[_Value]) -> asyncio.Future[_Value]:
        """An awaitable of the result of `answer`. Cancelling it only ends the wait."""
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
    """An event that many tasks await and one call sets. On one event loop.

    Take `next()` before reading the log and await it afterwards, so that growth in between is never missed.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def next(self) -> asyncio.Event:
        """An event that is set at the next growth."""
        return self._event

    def announce(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()


class Intake:
    """On one event loop; `growth` is announced there after each write of entries."""

    def __init__(self, sequencer: Sequencer, growth: Growth) -> None:
        self._sequencer = sequencer
        self._growth = growth
        # Also if the caller has gone: its entry is in the log, and watchers wait for it.
        self._answers = FutureBridge(growth.announce)
        self._threads = ThreadPoolExecutor(_THREADS, "ledger-intake")
        self._process = SharedQuestions(AdmissionProcess())
        self._calls = 0

    async def one(self, request: ledger_pb2.AppendEntryRequest, caller: Principal) -> Appended:
        """Check an entry and append it. Raises LedgerError, PermissionDenied, Unavailable."""
        self._calls += 1
        try:
            return await self.queue(await self._checked_one(request, caller))
        finally:
            self._calls -= 1

    async def _checked_one(self, request: ledger_pb2.AppendEntryRequest, caller: Principal) -> Admitted:
        """Check one entry: a small one on the event loop, because a thread takes as long, or by the process if there
        are enough other calls.
        """
        trusted = self._sequencer.trusted
        if request.ByteSize() > _LARGE_BYTES:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, _admitted, request, caller, trusted)
        found = None
        if self._calls >= _FOR_PROCESS:
            (found,) = await self._process.admitted(_alone(request), trusted)
        return found or _admitted(request, caller, trusted)

    def stream(self, caller: Principal) -> Submit:
        """The submit function of one stream. Requests are checked in parallel and queued in order; each entry gets the
        result or error of `one`. If the queue is full, a request waits for room, and no answer is Backpressure.
        """
        before: asyncio.Future[None] | None = None

        def submit(request: ledger_pb2.AppendEntriesRequest) -> asyncio.Future[list[Answer]]:
            nonlocal before
            earlier, before = before, asyncio.get_running_loop().create_future()
            answers = asyncio.ensure_future(self._appended(request, caller, earlier, before))
            answers.add_done_callback(lambda done: done.cancelled() or done.exception())  # its caller may have gone
            return answers

        return submit

    async def _appended(
        self,
        request: ledger_pb2.AppendEntriesRequest,
        caller: Principal,
        before: asyncio.Future[None] | None,
        queued: asyncio.Future[None],
    ) -> list[Answer]:
        """The answers of a request that is queued after `before`; `queued` is set when the next one may be."""
        try:
            checked = await self._checked(request, caller)
            del request  # otherwise it would be kept until it is answered
            if before is not None:
                await before
            admitted = [each for each in checked if isinstance(each, Admitted)]
            most = self._sequencer.most_together
            groups = [await self._queued(admitted[at : at + most]) for at in range(0, len(admitted), most)]
        finally:
            if not queued.done():
                queued.set_result(None)
        written = iter([answer for group in groups for answer in await group])
        return [next(written) if isinstance(each, Admitted) else each for each in checked]

    def queue(self, admitted: Admitted) -> asyncio.Future[Appended]:
        """Queue a checked envelope. Raises Backpressure, Stopped."""
        return self._answers.awaitable(self._sequencer.submit(admitted))

    async def _checked(self, request: ledger_pb2.AppendEntriesRequest, caller: Principal) -> list[_Checked]:
        """Check receipts of a large request in the process, other entries on a thread. Raises Unavailable."""
        trusted, loop = self._sequencer.trusted, asyncio.get_running_loop()
        found: Sequence[Admitted | None] = [None] * len(request.entries)
        if len(found) >= _FOR_PROCESS:
            found = await self._process.admitted(request, trusted)
        rest = [entry for entry, each in zip(request.entries, found, strict=True) if each is None]
        others = iter(await loop.run_in_executor(self._threads, _each, rest, caller, trusted) if rest else ())
        return [each or next(others) for each in found]

    async def _queued(self, admitted: Sequence[Admitted]) -> asyncio.Future[list[sequencer.Answer]]:
        """Submit entries together, once there is room for them."""
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


def _alone(request: ledger_pb2.AppendEntryRequest) -> ledger_pb2.AppendEntriesRequest:
    content = request.content if request.HasField("content") else None
    return ledger_pb2.AppendEntriesRequest(entries=[ledger_pb2.NewEntry(envelope=request.envelope, content=content)])


def _admitted(request: _Append, caller: Principal, trusted: TrustedKeys) -> Admitted:
    admitted = admitted_entry(request, trusted)
    if isinstance(admitted.document, Erasure | Retention):
        require_operator(caller)
    return admitted


def _each(requests: Sequence[_Append], caller: Principal, trusted: TrustedKeys) -> list[_Checked]:
    checked: list[_Checked] = []
    for request in requests:
        try:
            checked.append(_admitted(request, caller, trusted))
        except (KolmError, LedgerError) as error:
            checked.append(without_frames(error))
    return checked


def require_operator(caller: Principal) -> None:
    """Raises PermissionDenied."""
    if "operate" not in caller.roles:
        refused = f"an entry that erases content needs the role operate, which {caller.name} lacks"
        raise PermissionDenied(refused, reason="ROLE_MISSING")

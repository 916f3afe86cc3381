"""Entries on their way in: checked, then queued for the sequencer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import grpc

from kolm.ledger.v1 import ledger_pb2
from ledger.documents.erasure import Erasure, Retention
from ledger.errors import Backpressure, LedgerError
from ledger.log.admission import Admitted
from ledger.log.sequencer import Sequencer
from ledger.log.writer import Appended
from services.client import tracing
from services.client.ledger import log_wire
from services.ledger.loop_bridge import FutureBridge, Growth
from services.runtime.credentials import Principal
from services.runtime.errors import KolmError, PermissionDenied, without_frames


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

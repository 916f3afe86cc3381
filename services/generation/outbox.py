"""The outbox: every receipt goes to disk, then to the ledger, in order, for as long as it takes."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kolm.ledger.v1 import ledger_pb2
from services.generation.ledger_link import LedgerRefused, LedgerUnreachable
from services.generation.spool import Spool, Spooled

_log = logging.getLogger(__name__)

_AT_ONCE = 16  # appends under way together; the ledger commits them in one transaction
_FIRST_PAUSE = 0.05  # seconds; doubles up to the longest

Append = Callable[[ledger_pb2.AppendEntryRequest], Awaitable[ledger_pb2.AppendEntryResponse]]


@dataclass(slots=True, eq=False)
class _Waiting:
    spooled: Spooled
    answer: asyncio.Future[int | None]


class Outbox:
    """Holds appends until the ledger confirms them. On one event loop; disks are waited for on threads.

    What `put` has returned from survives the process. An append that the ledger refuses for good is put aside, logged
    and counted, and the others go on. `reserve` bounds what is on its way together with what is still being generated.
    """

    def __init__(self, spool: Spool, append: Append, limit: int, longest_pause: float) -> None:
        self._spool = spool
        self._append = append
        self._limit = limit
        self._longest_pause = longest_pause
        self._queue: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._writing = asyncio.Lock()
        self._failing = False
        self._reserved = 0
        self.refused = 0
        self.on_confirmed: Callable[[ledger_pb2.AppendEntryResponse], None] = lambda _: None

    @property
    def pending(self) -> int:
        """Receipts that the ledger has not confirmed, those put aside included."""
        return len(self._queue) + self.refused

    def reserve(self, count: int) -> bool:
        """Room for receipts to come; False if there would be more unconfirmed ones than the limit. Undo: `release`."""
        if self.pending + self._reserved + count > self._limit:
            return False
        self._reserved += count
        return True

    def release(self, count: int) -> None:
        self._reserved -= count

    async def recover(self) -> None:
        """Take up what an earlier process left."""
        left = await asyncio.to_thread(self._spool.recover)
        if left:
            _log.info("%d receipts of an earlier run are on their way to the ledger", len(left))
        for spooled in left:
            self._enqueue(spooled)

    async def retry_refused(self) -> None:
        """What the ledger would not take goes to the end of the queue; call it when there is reason to hope."""
        restored = await asyncio.to_thread(self._spool.restore)
        self.refused -= len(restored)
        for spooled in restored:
            self._enqueue(spooled)

    async def put(self, request: ledger_pb2.AppendEntryRequest) -> asyncio.Future[int | None]:
        """Keep an append for good. The future gives its index, or None if the first attempt has failed.

        Raises OSError: it is not on disk, nor in the queue.
        """
        async with self._writing:
            spooled = await asyncio.to_thread(self._spool.put, request)
            return self._enqueue(spooled)

    async def attempted(self) -> None:
        """Returns once the ledger has been tried with everything that is in the queue now."""
        await asyncio.gather(*(waiting.answer for waiting in self._queue))

    def _enqueue(self, spooled: Spooled) -> asyncio.Future[int | None]:
        answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        if self._failing:
            answer.set_result(None)
        self._queue.append(_Waiting(spooled, answer))
        self._arrived.set()
        return answer

    async def drain(self) -> None:
        """Send for ever. Run as a task."""
        pause = _FIRST_PAUSE
        while True:
            try:
                sent = await self.send_batch()
            except OSError:  # what is confirmed and still on disk is sent again, which changes nothing
                _log.exception("the spool's disk fails")
                sent = False
            if sent:
                pause = _FIRST_PAUSE
                if not self._queue:
                    self._arrived.clear()
                    await self._arrived.wait()
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, self._longest_pause)

    async def send_batch(self) -> bool:
        """Send the oldest few; False if one of them will have to be sent again."""
        batch = [self._queue[place] for place in range(min(_AT_ONCE, len(self._queue)))]
        settled = await asyncio.gather(*(self._send(waiting) for waiting in batch))
        for waiting, done in zip(batch, settled, strict=True):
            if done:
                self._queue.remove(waiting)
        failing = not all(settled)
        if failing and not self._failing:
            _log.warning("the ledger does not answer; %d receipts wait for it", len(self._queue))
        if self._failing and not failing:
            _log.info("the ledger answers again")
        self._failing = failing
        for waiting in self._queue if failing else ():
            _settle(waiting.answer, None)
        return not failing

    async def _send(self, waiting: _Waiting) -> bool:
        path = waiting.spooled.path
        try:
            response = await self._append(waiting.spooled.request)
        except LedgerUnreachable as error:
            _log.debug("append %s failed: %s", path.name, error)
            return False
        except LedgerRefused as error:
            _log.error("the ledger refuses %s (put aside in refused/, tried again at the next start): %s", path, error)
            self.refused += 1
            await asyncio.to_thread(self._spool.refuse, path)
            _settle(waiting.answer, None)
            return True
        await asyncio.to_thread(self._spool.remove, path)
        _settle(waiting.answer, response.index)
        self.on_confirmed(response)
        return True


def _settle(answer: asyncio.Future[int | None], index: int | None) -> None:
    if not answer.done():
        answer.set_result(index)

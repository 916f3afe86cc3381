"""The outbox: every receipt goes to disk first, then to the ledger, in order, until the ledger has it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from kolm.ledger.v1 import ledger_pb2
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import read_document
from ledger.errors import LedgerError
from ledger.keys.envelope import Envelope
from services.generation.ledger_link import LedgerRefused, LedgerUnreachable
from services.generation.receipts.spool import Spool

_log = logging.getLogger(__name__)

_FIRST_PAUSE = 0.05  # seconds; doubles up to the longest

_MOST_AT_ONCE = 64
_MOST_BYTES_AT_ONCE = 2**20
"""The most that one message to the ledger carries; a larger append goes alone."""

AppendAll = Callable[
    [Sequence[ledger_pb2.AppendEntryRequest]], Awaitable[Sequence[ledger_pb2.AppendEntryResponse | LedgerRefused]]
]


@dataclass(slots=True, eq=False)
class _Waiting:
    """`path` is None if the disk did not take it: then only this process has it, and the disk still has `replaces`."""

    request: ledger_pb2.AppendEntryRequest
    path: Path | None
    answer: asyncio.Future[int | None]
    replaces: Path | None = None


class Outbox:
    """Holds appends until the ledger confirms them. On one event loop; threads wait for the disk.

    Once `put` returns, the append survives the process. If the disk is full or gone, it is sent from memory, and
    `reserve` refuses everything new until that is done. An append that the ledger refuses for good is put aside, logged
    and counted; the others go on. `reserve` limits the receipts under way and those still being generated, together.
    """

    def __init__(self, spool: Spool, append_all: AppendAll, limit: int, longest_pause: float) -> None:
        self._spool = spool
        self._append_all = append_all
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
        """Receipts that the ledger has not confirmed, including those put aside."""
        return len(self._queue) + self.refused

    def reserve(self, count: int) -> bool:
        """Reserve room for `count` receipts, given back by `release`.

        False if more would be unconfirmed than the limit allows, or if one of them is not on disk.
        """
        if self.pending + self._reserved + count > self._limit or any(each.path is None for each in self._queue):
            return False
        self._reserved += count
        return True

    def release(self, count: int) -> None:
        self._reserved -= count

    async def recover(self, promised: Mapping[str, Path] = MappingProxyType({})) -> None:
        """Queue what an earlier process left. `promised`: its promised receipts, files by receipt_id.

        They are moved into the outbox, or removed where it has the receipt.
        """
        left = await asyncio.to_thread(self._spool.recover)
        spooled_ids = {_receipt_id(spooled.request) for spooled in left}
        for receipt_id in promised.keys() & spooled_ids:
            await asyncio.to_thread(self._spool.remove, promised[receipt_id])
        unfinished = [path for receipt_id, path in promised.items() if receipt_id not in spooled_ids]
        left += await asyncio.to_thread(self._spool.adopt, unfinished)
        if left:
            _log.info("%d receipts of an earlier run are on their way to the ledger", len(left))
        for spooled in left:
            self._enqueue(spooled.request, spooled.path)

    async def retry_refused(self) -> None:
        """Queue the refused appends again, at the end. Call it when the ledger may take them now."""
        restored = await asyncio.to_thread(self._spool.restore)
        self.refused -= len(restored)
        for spooled in restored:
            self._enqueue(spooled.request, spooled.path)

    async def put(
        self, request: ledger_pb2.AppendEntryRequest, replaces: Path | None = None
    ) -> asyncio.Future[int | None]:
        """Store and queue an append. The future gives its index, or None if the first attempt to send it failed.

        `replaces`: a file that is removed once the append is on disk here or in the ledger.
        """
        async with self._writing:
            try:
                path = (await asyncio.to_thread(self._spool.put, request)).path
            except OSError as error:
                _log.critical("a receipt cannot be kept on disk, and goes to the ledger from memory: %s", error)
                return self._enqueue(request, None, replaces)
        answer = self._enqueue(request, path)
        if replaces is not None:
            with suppress(OSError):  # found again at the next start
                await asyncio.to_thread(self._spool.remove, replaces)
        return answer

    async def attempted(self) -> None:
        """Returns once everything that is in the queue now has been sent, or tried in vain."""
        await asyncio.gather(*(waiting.answer for waiting in self._queue))

    def _enqueue(
        self, request: ledger_pb2.AppendEntryRequest, path: Path | None, replaces: Path | None = None
    ) -> asyncio.Future[int | None]:
        answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        if self._failing:
            answer.set_result(None)
        self._queue.append(_Waiting(request, path, answer, replaces))
        self._arrived.set()
        return answer

    async def drain(self) -> None:
        """Send until cancelled. Run it as a task."""
        pause = _FIRST_PAUSE
        while True:
            while not self._queue:
                self._arrived.clear()
                await self._arrived.wait()
            if await self._send_some():
                pause = _FIRST_PAUSE
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, self._longest_pause)

    async def _send_some(self) -> bool:
        """Send the oldest. False if some have to be sent again; their callers are answered None."""
        oldest = self._oldest()
        try:
            answers = await self._append_all([waiting.request for waiting in oldest])
            for waiting, answer in zip(oldest, answers, strict=True):
                await self._take(waiting, answer)
                self._queue.popleft()
        except (LedgerUnreachable, OSError) as error:  # OSError: sent again, which does no harm
            if not self._failing:
                _log.warning("%d receipts wait, the first one because of: %s", len(self._queue), error)
            self._failing = True
            for each in self._queue:
                _settle(each.answer, None)
            return False
        if self._failing:
            _log.info("the ledger takes receipts again")
        self._failing = False
        return True

    def _oldest(self) -> list[_Waiting]:
        """As many as fit into one message, at least one."""
        oldest: list[_Waiting] = []
        size = 0
        for waiting in islice(self._queue, _MOST_AT_ONCE):
            size += waiting.request.ByteSize()
            if oldest and size > _MOST_BYTES_AT_ONCE:
                break
            oldest.append(waiting)
        return oldest

    async def _take(self, waiting: _Waiting, answer: ledger_pb2.AppendEntryResponse | LedgerRefused) -> None:
        path = waiting.path
        if isinstance(answer, LedgerRefused) and not _is_needless(waiting.request, answer):
            if path is None:  # it has to be on disk to be put aside; on OSError it is sent again
                async with self._writing:
                    path = waiting.path = (await asyncio.to_thread(self._spool.put, waiting.request)).path
                if waiting.replaces is not None:
                    await asyncio.to_thread(self._spool.remove, waiting.replaces)
            _log.error("the ledger refuses %s (put aside in refused/, tried again at the next start): %s", path, answer)
            await asyncio.to_thread(self._spool.refuse, path)
            self.refused += 1
            _settle(waiting.answer, None)
            return
        for needless in filter(None, (path, waiting.replaces)):
            await asyncio.to_thread(self._spool.remove, needless)
        if isinstance(answer, LedgerRefused):
            _settle(waiting.answer, None)
            return
        _settle(waiting.answer, answer.index)
        self.on_confirmed(answer)


def _is_needless(request: ledger_pb2.AppendEntryRequest, refused: LedgerRefused) -> bool:
    """Whether this is a promised receipt without an output that a crash left beside the real one, which the log has."""
    return refused.reason == "CONFLICT" and not request.content.output_token_ids


def _receipt_id(request: ledger_pb2.AppendEntryRequest) -> str | None:
    try:
        document = read_document(Envelope.from_bytes(request.envelope))
    except LedgerError:  # the ledger will say so
        return None
    return document.receipt_id if isinstance(document, Receipt) else None


def _settle(answer: asyncio.Future[int | None], index: int | None) -> None:
    if not answer.done():
        answer.set_result(index)

"""The outbox: receipts and their key entry, written to disk and sent until the ledger has them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from kolm.ledger.v1 import ledger_pb2
from ledger.documents.dates import MOST_SKEW_SECONDS, ahead_of
from ledger.documents.key_entry import KeyEntry
from ledger.documents.signed_document import sign_document
from ledger.durable_file import write_durably
from ledger.encoding.text_forms import moved, timestamp
from ledger.errors import FormatError
from ledger.keys.envelope import Envelope
from ledger.keys.signer import Signer
from services.generation.ledger_link import LedgerLink, LedgerRefused, LedgerUnreachable
from services.generation.receipts.issuer import SignedReceipt
from services.generation.receipts.journal import Journal, Kind

_log = logging.getLogger(__name__)

_FIRST_PAUSE = 0.05  # seconds; doubles up to the longest pause
_AHEAD_PAUSE = 60.0  # seconds
_CLOCK_AHEAD = "CLOCK_AHEAD"
"""The ledger's reason for a document dated in the future, which it accepts later."""

_MOST_AT_ONCE = 64
_MOST_BYTES_AT_ONCE = 2**20
"""Limit of one message to the ledger; a larger append is sent alone."""

AppendAll = Callable[
    [Sequence[ledger_pb2.AppendEntryRequest]], Awaitable[Sequence[ledger_pb2.AppendEntryResponse | LedgerRefused]]
]
_UNREACHABLE_PAUSE = 1.0  # seconds
_REFUSED_PAUSE = 5.0  # an operator has to act meanwhile


@dataclass(slots=True, eq=False)
class _Waiting:
    """An append in the queue. While it is not `kept`, it is in memory only and the disk has the promised receipt.
    `answer`: the index in the log, or None if it is on disk and a first attempt at the ledger has failed.
    """

    receipt_id: str
    request: ledger_pb2.AppendEntryRequest
    kept: bool
    answer: asyncio.Future[int | None]
    ahead: bool = False


class ReceiptUnkept(Exception):
    """Neither the disk nor the ledger has accepted a receipt. It must not be shown: a crash would replace it by the
    promised receipt of its id.
    """


class Outbox:
    """Holds appends until the ledger confirms them. Used on one event loop.

    Once `promise` or `put` returns, the append survives the process. If the disk is full or gone, a receipt is sent
    from memory, and `reserve` refuses new requests until the ledger or the disk has it. An append that the ledger
    refuses is put aside until the next start or `register`, logged and counted; an append that is dated ahead of the
    ledger's clock is put aside until that time. `reserve` limits the sum of queued and of unfinished receipts.
    """

    def __init__(self, journal: Journal, append_all: AppendAll, limit: int, longest_pause: float) -> None:
        self._journal = journal
        self._append_all = append_all
        self._limit = limit
        self._longest_pause = longest_pause
        self._queue: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._aside: list[_Waiting] = []  # appends that the ledger has refused
        self._failing = False
        self._most = _MOST_AT_ONCE  # fewer after a failure, which the size of a message may have caused
        self._reserved = 0
        self.on_confirmed: Callable[[ledger_pb2.AppendEntryResponse], None] = lambda _: None

    @property
    def refused(self) -> int:
        return len(self._aside)

    @property
    def pending(self) -> int:
        """Count of receipts without the ledger's confirmation, including refused ones."""
        return len(self._queue) + self.refused

    def reserve(self, count: int) -> bool:
        """Reserve room for `count` receipts, given back by `release`.

        Returns False if the limit of unconfirmed receipts is reached, or a receipt is not on disk.
        """
        if self.pending + self._reserved + count > self._limit or any(not each.kept for each in self._queue):
            return False
        self._reserved += count
        return True

    def release(self, count: int) -> None:
        self._reserved -= count

    async def recover(self) -> None:
        """Queue the open receipts of an earlier process. Raises OSError."""
        left = await asyncio.to_thread(self._journal.recover)
        if left:
            _log.info("sending %d receipts of an earlier run to the ledger", len(left))
        for receipt_id, request in left.items():
            self._enqueue(receipt_id, request, kept=True)

    def retry_refused(self, *, ahead_alone: bool = False) -> None:
        """Queue refused appends again, at the end: all, or only appends dated ahead of the ledger's clock. Call it when
        the ledger may accept them.
        """
        again = [each for each in self._aside if each.ahead or not ahead_alone]
        self._aside = [each for each in self._aside if each not in again]
        for each in again:
            self._enqueue(each.receipt_id, each.request, kept=each.kept, ahead=each.ahead)

    async def retry_ahead(self) -> None:
        """Retry appends dated ahead of the ledger's clock periodically, until cancelled."""
        while True:
            await asyncio.sleep(_AHEAD_PAUSE)
            self.retry_refused(ahead_alone=True)

    async def promise(self, unfinished: Sequence[SignedReceipt]) -> None:
        """Write the receipts for the log if this process dies before `put`. Raises OSError, and then keeps none of
        them.
        """
        await self._journal.keep(Kind.PROMISED, {receipt.receipt_id: receipt.append for receipt in unfinished})

    async def put(self, receipt_id: str, request: ledger_pb2.AppendEntryRequest, seconds: float) -> int | None:
        """Store and queue an append, in place of the promised receipt of its id. Returns its index, or None if the
        first attempt failed or took longer than `seconds`.

        Raises ReceiptUnkept if it is not on disk by then either; both are retried while the process lives.
        """
        kept = True
        try:
            await self._journal.keep(Kind.WAITING, {receipt_id: request})
        except OSError as error:
            kept = False
            _log.critical("sending a receipt to the ledger from memory: it cannot be written to disk: %s", error)
        waiting = self._enqueue(receipt_id, request, kept=kept)
        try:
            return await asyncio.wait_for(asyncio.shield(waiting.answer), seconds)
        except TimeoutError:
            if not waiting.kept:
                raise ReceiptUnkept(receipt_id) from None
            return None

    async def attempted(self) -> None:
        """Wait until everything in the queue has been sent, or is on disk after a failed attempt."""
        await asyncio.gather(*(waiting.answer for waiting in self._queue))

    def _enqueue(
        self, receipt_id: str, request: ledger_pb2.AppendEntryRequest, *, kept: bool, ahead: bool = False
    ) -> _Waiting:
        waiting = _Waiting(receipt_id, request, kept, asyncio.get_running_loop().create_future(), ahead)
        if self._failing and kept:
            waiting.answer.set_result(None)
        self._queue.append(waiting)
        self._arrived.set()
        return waiting

    async def drain(self) -> None:
        """Send until cancelled."""
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
        """Send the oldest appends. Returns False if some have to be sent again; callers of appends on disk get None."""
        oldest = self._oldest()
        fewer = max(1, len(oldest) // 2)
        try:
            try:
                answers = await self._append_all([waiting.request for waiting in oldest])
            except LedgerRefused as refused:
                if len(oldest) > 1:
                    self._most = fewer
                    return True
                answers = [refused]
            for waiting, answer in zip(oldest, answers, strict=True):
                await self._take(waiting, answer)
                self._queue.popleft()
        except (LedgerUnreachable, OSError) as error:  # OSError: sent again, which is harmless
            if not self._failing:
                _log.warning("holding %d receipts; the reason of the first: %s", len(self._queue), error)
            self._failing, self._most = True, fewer
            await self._keep_unkept()
            for each in self._queue:
                if each.kept:
                    _settle(each.answer, None)
            return False
        if self._failing:
            _log.info("resuming delivery: the ledger accepts receipts again")
        self._failing, self._most = False, min(2 * self._most, _MOST_AT_ONCE)
        return True

    async def _keep_unkept(self) -> None:
        """Write appends to disk that are in memory only."""
        unkept = [each for each in self._queue if not each.kept]
        if unkept:
            with suppress(OSError):
                await self._journal.keep(Kind.WAITING, {each.receipt_id: each.request for each in unkept})
                for each in unkept:
                    each.kept = True

    def _oldest(self) -> list[_Waiting]:
        """The oldest receipts that fit into one message, at least one receipt."""
        oldest: list[_Waiting] = []
        size = 0
        for waiting in islice(self._queue, self._most):
            size += waiting.request.ByteSize()
            if oldest and size > _MOST_BYTES_AT_ONCE:
                break
            oldest.append(waiting)
        return oldest

    async def _take(self, waiting: _Waiting, answer: ledger_pb2.AppendEntryResponse | LedgerRefused) -> None:
        if isinstance(answer, LedgerRefused) and not _is_needless(waiting.request, answer):
            if not waiting.kept:  # put aside only if it is on disk; on OSError it is sent again
                await self._journal.keep(Kind.WAITING, {waiting.receipt_id: waiting.request})
                waiting.kept = True
            if answer.reason != _CLOCK_AHEAD:
                _log.error(
                    "putting receipt %s aside until the next start: the ledger refuses it: %s",
                    waiting.receipt_id, answer,
                )  # fmt: skip
            elif not waiting.ahead:
                _log.error(
                    "putting receipt %s aside: it is dated ahead of the ledger's clock. Compare "
                    "the clocks of the two machines: %s", waiting.receipt_id, answer,
                )  # fmt: skip
            waiting.ahead = answer.reason == _CLOCK_AHEAD
            self._aside.append(waiting)
            _settle(waiting.answer, None)
            return
        self._journal.settle(waiting.receipt_id)
        _settle(waiting.answer, None if isinstance(answer, LedgerRefused) else answer.index)
        if not isinstance(answer, LedgerRefused):
            self.on_confirmed(answer)


def _is_needless(request: ledger_pb2.AppendEntryRequest, refused: LedgerRefused) -> bool:
    """Whether this is a promised receipt without an output whose real receipt is in the log."""
    return refused.reason == "CONFLICT" and not request.content.output_token_ids


def _settle(answer: asyncio.Future[int | None], index: int | None) -> None:
    if not answer.done():
        answer.set_result(index)


def key_envelope(path: Path, key: Signer) -> bytes:
    """The signed key entry, made once for each key and stored at `path`: the same bytes get the same index. An entry
    that is dated ahead of this machine's clock is made again: the clock was wrong, and no ledger takes it before then.

    Raises FormatError for another file, OSError.
    """
    now = timestamp(datetime.now(UTC))
    stored = _stored(path) if path.exists() else None
    if stored is None or stored.public_key != key.public or ahead_of(stored, moved(now, MOST_SKEW_SECONDS)):
        write_durably(path, sign_document(KeyEntry(key.role, key.public, now), key).to_bytes())
    return path.read_bytes()


def _stored(path: Path) -> KeyEntry:
    try:
        return KeyEntry.from_bytes(Envelope.from_bytes(path.read_bytes()).payload)
    except FormatError as error:
        raise FormatError(str(path), f"{error}; move it away, and the next start writes the key entry again") from None


async def register(
    envelopes: Sequence[bytes],
    key: Signer,
    ledger: LedgerLink,
    outbox: Outbox,
    key_entry: Callable[[], bytes] | None = None,
) -> None:
    """Append the key entry and the entries that receipts refer to, in this order, each until it succeeds; then retry
    the refused receipts. `key_entry` reads the first entry again if it is dated ahead of the ledger's clock. Blocking.
    """
    refused, waiting = False, list(envelopes)
    while waiting:
        try:
            await ledger.append(ledger_pb2.AppendEntryRequest(envelope=waiting[0]))
        except LedgerUnreachable:
            await asyncio.sleep(_UNREACHABLE_PAUSE)
        except LedgerRefused as error:
            if not refused:
                hint = "add it to the ledger's trusted keys (`kolm trust add`)"
                if error.reason == _CLOCK_AHEAD:
                    hint = "its entry is dated ahead of the ledger's clock: compare the clocks of the two machines"
                elif error.reason == "MESSAGE_TOO_LARGE":
                    hint = "raise the ledger's --max-message"
                _log.error("retrying to register the key %s; %s: %s", key.key_id, hint, error)
            refused = True
            await asyncio.sleep(_REFUSED_PAUSE)
            if key_entry is not None and len(waiting) == len(envelopes) and error.reason == _CLOCK_AHEAD:
                waiting[0] = await asyncio.to_thread(key_entry)
        else:
            del waiting[0]
    if refused:
        _log.info("registered the key %s", key.key_id)
    if outbox.refused:
        outbox.retry_refused()

"""One AppendEntries call: answers in the order of requests, with a bounded number in progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from kolm.ledger.v1 import ledger_pb2
from ledger.log.writer import Appended
from services.ledger import messages
from services.ledger.intake import Answer, Submit
from services.ledger.ledger_errors import to_kolm_error
from services.runtime.calls import current_request_id
from services.runtime.errors import (
    AlreadyExists,
    InvalidArgument,
    KolmError,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
    to_status,
)

MOST_ENTRIES = 1024
"""The most entries of one request, and in progress."""

_MOST_BYTES = 4 * 1024 * 1024
_THE_ENTRY = (InvalidArgument, AlreadyExists, PermissionDenied, Unauthenticated)
"""Errors about one entry, after which the stream continues. After any other error the next entry would fail too."""


class Window:
    """A window of entries and bytes; a larger request enters alone. On one event loop."""

    def __init__(self, entries: int, size: int) -> None:
        self._most_entries = entries
        self._most_bytes = size
        self._entries = 0
        self._bytes = 0
        self._left = asyncio.Event()

    async def enter(self, entries: int, size: int) -> None:
        """Wait for room for a request of `entries` entries and `size` bytes, and take it."""
        while self._entries and not self._fits(entries, size):
            self._left.clear()
            await self._left.wait()
        self._entries += entries
        self._bytes += size

    def leave(self, entries: int, size: int) -> None:
        """Give back the room of an answered request."""
        self._entries -= entries
        self._bytes -= size
        self._left.set()

    def _fits(self, entries: int, size: int) -> bool:
        return self._entries + entries <= self._most_entries and self._bytes + size <= self._most_bytes


@dataclass(frozen=True, slots=True)
class _Work:
    """A request in progress: its size, in entries and in bytes, and the answers to its entries."""

    entries: int
    size: int
    answers: asyncio.Future[list[Answer]]


class EntryStream:
    """Reads ahead of its answers: while one batch is written, the entries of the next are checked.

    Reading stops while the window is full, and gRPC's flow control then stops the caller.
    """

    def __init__(self, requests: AsyncIterator[ledger_pb2.AppendEntriesRequest], submit: Submit) -> None:
        self._requests = requests
        self._submit = submit
        self._window = Window(MOST_ENTRIES, _MOST_BYTES)
        self._work: asyncio.Queue[_Work | Exception | None] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None
        self._ending: KolmError | None = None

    async def answers(self) -> AsyncGenerator[ledger_pb2.AppendEntriesResponse]:
        """An answer for each request, in order. Raises the error that ends the stream, mostly KolmError, after all
        earlier answers.
        """
        self._reading = asyncio.create_task(self._read())
        try:
            while isinstance(work := await self._work.get(), _Work):
                yield ledger_pb2.AppendEntriesResponse(results=[_result(answer) for answer in await work.answers])
                self._window.leave(work.entries, work.size)
            if work is not None:
                raise work
        finally:
            await self._give_up()

    def stop(self) -> None:
        """Take no more requests; requests in progress are still answered."""
        self._ending = Unavailable("the ledger is shutting down; send unanswered entries again")
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self) -> None:
        end: Exception | None = None
        try:
            async for request in self._requests:
                count, size = _checked_count(request), request.ByteSize()
                await self._window.enter(count, size)
                self._work.put_nowait(_Work(count, size, self._submit(request)))
                del request  # otherwise it would be kept until the next one arrives
        except Exception as error:  # raised to the caller, because an ended stream would look complete
            end = error
        except asyncio.CancelledError:
            end = self._ending
        finally:
            self._work.put_nowait(end)

    async def _give_up(self) -> None:
        """The caller has gone, or the stream has failed. Queued entries are still written."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])  # the source closes the requests, and no reader may be inside
        while not self._work.empty():
            work = self._work.get_nowait()
            if isinstance(work, _Work):
                work.answers.cancel()


def _checked_count(request: ledger_pb2.AppendEntriesRequest) -> int:
    count = len(request.entries)
    if not 1 <= count <= MOST_ENTRIES:
        raise InvalidArgument("entries", f"expected 1 to {MOST_ENTRIES} of them, got {count}")
    return count


def _result(answer: Answer) -> ledger_pb2.EntryResult:
    if isinstance(answer, Appended):
        return ledger_pb2.EntryResult(appended=messages.appended_message(answer))
    error = answer if isinstance(answer, KolmError) else to_kolm_error(answer, "entry", "with this receipt_id")
    if not isinstance(error, _THE_ENTRY):
        raise error
    return ledger_pb2.EntryResult(error=to_status(error, current_request_id.get()))

"""One AppendEntries call: requests in, answers out, in the same order, a bounded number of them in work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from kolm.ledger.v1 import ledger_pb2
from ledger.appended import Appended
from ledger.errors import LedgerError
from services.ledger import messages
from services.ledger.errors import to_kolm_error
from services.ledger.window import Window
from services.runtime.errors import (
    AlreadyExists,
    InvalidArgument,
    KolmError,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from services.runtime.request_context import current_request_id
from services.runtime.status import to_status

_MOST_REQUESTS = 1024
_MOST_BYTES = 16 * 1024 * 1024

_THE_ENTRY = (InvalidArgument, AlreadyExists, PermissionDenied, Unauthenticated)
"""Errors that blame one entry, so that the stream goes on. After any other the next entry would fare no better."""

Submit = Callable[[ledger_pb2.AppendEntriesRequest], Awaitable[asyncio.Future[Appended]]]


@dataclass(frozen=True, slots=True)
class _Work:
    """A request in work: its size in bytes, and its answer or why there will be none."""

    size: int
    answer: asyncio.Future[Appended]


class EntryStream:
    """Reads ahead of its answers: while one batch is made durable, the entries of the next are checked.

    Reading stops while the window is full, or while `submit` waits for room in the ledger's queue, and gRPC's flow
    control then stops the caller.
    """

    def __init__(self, requests: AsyncIterator[ledger_pb2.AppendEntriesRequest], submit: Submit) -> None:
        self._requests = requests
        self._submit = submit
        self._window = Window(_MOST_REQUESTS, _MOST_BYTES)
        self._work: asyncio.Queue[_Work | KolmError | None] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None
        self._ending: KolmError | None = None

    async def answers(self) -> AsyncGenerator[ledger_pb2.AppendEntriesResponse]:
        """One for each request. Raises KolmError where the stream cannot go on, after all answers before that."""
        self._reading = asyncio.create_task(self._read())
        number = 0
        try:
            while isinstance(work := await self._work.get(), _Work):
                yield await _answer(number, work)
                self._window.leave(work.size)
                number += 1
            if work is not None:
                raise work
        finally:
            self._give_up()

    def stop(self) -> None:
        """Take no more requests; what is in work is still answered."""
        self._ending = Unavailable("the ledger is shutting down; send again what was not answered")
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self) -> None:
        end: KolmError | None = None
        try:
            async for request in self._requests:
                size = request.ByteSize()
                await self._window.enter(size)
                self._work.put_nowait(_Work(size, await self._submitted(request)))
        except KolmError as error:  # the bytes were no message
            end = error
        except asyncio.CancelledError:
            end = self._ending
        finally:
            self._work.put_nowait(end)

    async def _submitted(self, request: ledger_pb2.AppendEntriesRequest) -> asyncio.Future[Appended]:
        try:
            return await self._submit(request)
        except (KolmError, LedgerError) as error:
            refused: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused

    def _give_up(self) -> None:
        """Nobody waits for the rest any more. What was queued is written all the same."""
        if self._reading is not None:
            self._reading.cancel()
        while not self._work.empty():
            work = self._work.get_nowait()
            if isinstance(work, _Work) and not work.answer.cancel() and not work.answer.cancelled():
                work.answer.exception()  # looked at, so that asyncio does not complain that nobody did


async def _answer(number: int, work: _Work) -> ledger_pb2.AppendEntriesResponse:
    try:
        appended = await work.answer
    except LedgerError as error:
        return _refusal(number, to_kolm_error(error, "entry", "with this receipt_id"))
    except KolmError as error:
        return _refusal(number, error)
    return ledger_pb2.AppendEntriesResponse(request_number=number, appended=messages.appended_message(appended))


def _refusal(number: int, error: KolmError) -> ledger_pb2.AppendEntriesResponse:
    if not isinstance(error, _THE_ENTRY):
        raise error
    status = to_status(error, current_request_id.get())
    return ledger_pb2.AppendEntriesResponse(request_number=number, error=status)

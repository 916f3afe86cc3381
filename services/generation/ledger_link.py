"""The client of the ledger service: its calls, and which of their failures are temporary."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TypeVar

import grpc

from kolm.ledger.v1 import documents_pb2, ledger_pb2
from kolm.ledger.v1.ledger_pb2_grpc import LedgerServiceStub
from ledger.errors import FormatError
from ledger.tree.entry import Entry
from services.client.channel import OPTIONS, async_channel, call_metadata, endpoint
from services.client.errors import AlreadyExists, InvalidArgument, Unauthenticated, decode_error, decode_status
from services.client.identity import Metadata

_SECONDS = 10.0

_Answer = TypeVar("_Answer")

_log = logging.getLogger(__name__)


class LedgerUnreachable(Exception):
    """The ledger did not answer, or cannot serve now; the same call may succeed later."""


class LedgerRefused(Exception):
    """The ledger refuses the entry, or a message of entries; `reason` as in its ErrorInfo, or MESSAGE_TOO_LARGE."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason


class LedgerLink:
    """One channel to the ledger, on the event loop that made it. Connects lazily and again after a loss."""

    def __init__(self, target: str) -> None:
        self._where = endpoint(target)
        self._channel = async_channel(self._where, OPTIONS)
        self._stub = LedgerServiceStub(self._channel)

    async def append(self, request: ledger_pb2.AppendEntryRequest) -> ledger_pb2.AppendEntryResponse:
        """Raises LedgerUnreachable, LedgerRefused."""
        return await _answered(self._stub.AppendEntry(request, timeout=_SECONDS, metadata=self._credentials()))

    async def append_all(
        self, requests: Sequence[ledger_pb2.AppendEntryRequest]
    ) -> list[ledger_pb2.AppendEntryResponse | LedgerRefused]:
        """One answer for each request, in order: its entry, or the ledger's refusal.

        Raises LedgerUnreachable; requests may be in the log by then, and get the same index when they are sent again.
        Raises LedgerRefused for all of them together, which fewer of them may escape.
        """
        entries = [_new_entry(request) for request in requests]
        sent = iter([ledger_pb2.AppendEntriesRequest(entries=entries)])
        call = self._stub.AppendEntries(sent, timeout=_SECONDS, metadata=self._credentials())
        try:
            response = await call.read()
        except grpc.aio.AioRpcError as error:
            raise _failure(error) from error
        if not isinstance(response, ledger_pb2.AppendEntriesResponse) or len(response.results) != len(requests):
            raise LedgerUnreachable("the ledger ended the stream without answering every entry")
        return [_result(result) for result in response.results]

    async def halt_state(self) -> ledger_pb2.GetHaltStateResponse:
        """Raises LedgerUnreachable."""
        try:
            return await _answered(self._stub.GetHaltState(ledger_pb2.GetHaltStateRequest(), timeout=_SECONDS))
        except LedgerRefused as error:
            raise LedgerUnreachable(str(error)) from error

    def about_heads(self, start: int) -> AsyncIterator[Entry]:
        """Withdrawals and k-scores from an index on. Raises LedgerUnreachable."""
        return self._entries(start, documents_pb2.ENTRY_KIND_HEAD_WITHDRAWAL, documents_pb2.ENTRY_KIND_KSCORE)

    async def resumes(self, start: int) -> list[Entry]:
        """Resumes from an index on. Raises LedgerUnreachable."""
        return [entry async for entry in self._entries(start, documents_pb2.ENTRY_KIND_RESUME)]

    def erasures(self, start: int) -> AsyncIterator[Entry]:
        """Erasures and expiries of content from an index on. Raises LedgerUnreachable."""
        return self._entries(start, documents_pb2.ENTRY_KIND_ERASURE, documents_pb2.ENTRY_KIND_EXPIRY)

    async def close(self) -> None:
        await self._channel.close()

    def _credentials(self) -> Metadata:
        """This service's token. Raises LedgerUnreachable if it cannot be read."""
        try:
            return call_metadata(self._where, None)
        except Unauthenticated as error:
            raise LedgerUnreachable(str(error)) from error

    async def _entries(self, start: int, *kinds: documents_pb2.EntryKind.ValueType) -> AsyncIterator[Entry]:
        """Entries as they arrive. Raises LedgerUnreachable, perhaps after some of them."""
        request = ledger_pb2.WatchEntriesRequest(start_index=start, kinds=kinds)
        try:
            answers = self._stub.WatchEntries(request, timeout=_SECONDS, metadata=self._credentials())
            async for answer in answers:
                if (entry := _read(answer.entry.entry)) is not None:
                    yield entry
        except grpc.aio.AioRpcError as error:
            raise LedgerUnreachable(f"{error.code().name}: {error.details()}") from error


def _read(data: bytes) -> Entry | None:
    """The entry, or None for bytes that are not an entry, which are skipped."""
    try:
        return Entry.from_bytes(data)
    except FormatError as error:
        _log.warning("skipping an unreadable entry of the ledger: %s", error)
        return None


def _new_entry(request: ledger_pb2.AppendEntryRequest) -> ledger_pb2.NewEntry:
    content = request.content if request.HasField("content") else None
    return ledger_pb2.NewEntry(envelope=request.envelope, content=content)


def _result(result: ledger_pb2.EntryResult) -> ledger_pb2.AppendEntryResponse | LedgerRefused:
    if result.HasField("appended"):
        return result.appended
    error = decode_status(result.error)
    return LedgerRefused(error.reason, error.message)


async def _answered(call: Awaitable[_Answer]) -> _Answer:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise _failure(error) from error


def _failure(error: grpc.aio.AioRpcError) -> LedgerRefused | LedgerUnreachable:
    refused = decode_error(error)
    if isinstance(refused, InvalidArgument | AlreadyExists):
        return LedgerRefused(refused.reason, refused.message)
    return LedgerUnreachable(f"{error.code().name}: {error.details() or ''}")

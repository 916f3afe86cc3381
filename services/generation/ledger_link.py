"""The way to the ledger service: its calls, and which of their failures mean try again."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from kolm.ledger.v1 import documents_pb2, ledger_pb2
from kolm.ledger.v1.ledger_pb2_grpc import LedgerServiceStub

_SECONDS = 10.0
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.lb_policy_name", "round_robin"),
)
_FINAL = frozenset({grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.OUT_OF_RANGE})

_Answer = TypeVar("_Answer")


class LedgerUnreachable(Exception):
    """The ledger did not answer, or cannot for the moment; the same call may succeed later."""


class LedgerRefused(Exception):
    """The ledger looked at it and will not take it; `reason` as in its ErrorInfo."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason


class LedgerLink:
    """One channel to the ledger, on the event loop that made it. Connects lazily and again after a loss."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.aio.insecure_channel(target, options=_OPTIONS)
        self._stub = LedgerServiceStub(self._channel)

    async def append(self, request: ledger_pb2.AppendEntryRequest) -> ledger_pb2.AppendEntryResponse:
        """Raises LedgerUnreachable, LedgerRefused."""
        return await _answered(self._stub.AppendEntry(request, timeout=_SECONDS))

    async def halt_state(self) -> ledger_pb2.GetHaltStateResponse:
        """Raises LedgerUnreachable."""
        try:
            return await _answered(self._stub.GetHaltState(ledger_pb2.GetHaltStateRequest(), timeout=_SECONDS))
        except LedgerRefused as error:
            raise LedgerUnreachable(str(error)) from error

    async def about_heads(self, start: int) -> list[documents_pb2.Entry]:
        """Withdrawals and k-scores from an index on. Raises LedgerUnreachable."""
        return await self._entries(start, documents_pb2.ENTRY_KIND_HEAD_WITHDRAWAL, documents_pb2.ENTRY_KIND_KSCORE)

    async def resumes(self, start: int) -> list[documents_pb2.Entry]:
        """Resumes from an index on. Raises LedgerUnreachable."""
        return await self._entries(start, documents_pb2.ENTRY_KIND_RESUME)

    async def close(self) -> None:
        await self._channel.close()

    async def _entries(self, start: int, *kinds: documents_pb2.EntryKind.ValueType) -> list[documents_pb2.Entry]:
        request = ledger_pb2.WatchEntriesRequest(start_index=start, kinds=kinds)
        try:
            return [answer.entry async for answer in self._stub.WatchEntries(request, timeout=_SECONDS)]
        except grpc.aio.AioRpcError as error:
            raise LedgerUnreachable(f"{error.code().name}: {error.details()}") from error


async def _answered(call: Awaitable[_Answer]) -> _Answer:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        if error.code() in _FINAL:
            raise LedgerRefused(_reason(error), error.details() or "") from error
        raise LedgerUnreachable(f"{error.code().name}: {error.details()}") from error


def _reason(error: grpc.aio.AioRpcError) -> str:
    info = error_details_pb2.ErrorInfo()
    try:
        status = rpc_status.from_call(error)
    except ValueError:  # the rich status contradicts the plain one
        status = None
    if status is not None and any(detail.Unpack(info) for detail in status.details):
        return str(info.reason)
    return error.code().name

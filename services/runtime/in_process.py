"""A gRPC channel to a server of the same process, as Java's in-process transport is one: the same stubs, interceptor,
access, limits, errors, deadlines and cancellation, without sockets and gRPC's threads, which take most of the time of a
short message. On one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc

from services.runtime.calls import CallInterceptor, Handler

_AHEAD = 16  # messages that a stream buffers ahead of its reader, as sockets do between two processes

Metadata = tuple[tuple[str, str | bytes], ...]


class InProcessServer:
    """A server's handlers, called through its interceptor."""

    def __init__(self, interceptor: CallInterceptor) -> None:
        self._interceptor = interceptor
        self._handlers: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Add handlers, as generated code does on a `grpc.aio.Server`."""
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Do nothing: generated code registers the same handlers again, for another kind of lookup."""

    async def handler(self, call: _CallDetails) -> Handler | None:
        async def found(details: grpc.HandlerCallDetails) -> Any:
            return next(filter(None, (each.service(details) for each in self._handlers)), None)

        return await self._interceptor.intercept_service(found, call)


@dataclass(frozen=True, slots=True)
class InProcessChannel:
    """The part of a `grpc.aio.Channel` that stubs use, for calls with one request."""

    server: InProcessServer

    def unary_unary(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        def call(request: Any, timeout: float | None = None, metadata: Metadata = ()) -> _Call:
            called = _CallDetails(method, tuple(metadata))
            return _Call(self.server, called, request_serializer(request), response_deserializer, timeout)

        return call

    unary_stream = unary_unary

    def stream_stream(self, method: str, *_: Any, **__: Any) -> None:
        """Do nothing: stubs of services with such calls can be created, but the calls cannot be made."""

    async def channel_ready(self) -> None:
        """Return at once: the channel is always ready."""

    async def close(self) -> None:
        """Do nothing: a call ends with its caller's task."""


@dataclass(frozen=True, slots=True)
class _CallDetails(grpc.HandlerCallDetails):
    method: str
    invocation_metadata: Metadata


class _Context:
    """The handler's side of a call. Messages are serialised, so that the two sides share no object."""

    def __init__(self, called: _CallDetails, request: bytes, timeout: float | None) -> None:
        self._called, self._requests = called, [request]
        self._ends = None if timeout is None else time.monotonic() + timeout
        self.serialize: Callable[[Any], bytes]
        self.answers: asyncio.Queue[Any] = asyncio.Queue(_AHEAD)
        self.initial: Metadata = ()
        self.trailing: Metadata = ()
        self.status: tuple[grpc.StatusCode, str] | None = None  # once it is known how the call ends

    async def read(self) -> Any:
        return self._requests.pop() if self._requests else grpc.aio.EOF

    async def write(self, message: Any) -> None:
        await self.answers.put(self.serialize(message))

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: Metadata) -> NoReturn:
        self.status, self.trailing = self.status or (code, details), trailing_metadata
        raise grpc.aio.AbortError

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        self.initial = metadata

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        self.trailing = metadata

    def invocation_metadata(self) -> Metadata:
        return self._called.invocation_metadata

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK if self.status is None else self.status[0]

    def time_remaining(self) -> float | None:
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())

    def peer(self) -> str:
        return "in-process:0"

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        return {}


class _Call:
    """The client's side of a call: a stream to read, or an answer to await."""

    def __init__(
        self, server: InProcessServer, called: _CallDetails, request: bytes, deserialize: Callable[[bytes], Any],
        timeout: float | None,
    ) -> None:  # fmt: skip
        self._context, self._deserialize = _Context(called, request, timeout), deserialize
        self._task = asyncio.create_task(self._run_handler(server, called))
        if timeout is not None:
            late = grpc.StatusCode.DEADLINE_EXCEEDED, "the call's deadline passed"
            timer = asyncio.get_running_loop().call_later(timeout, self._end, *late)
            self._task.add_done_callback(lambda _: timer.cancel())

    async def _run_handler(self, server: InProcessServer, called: _CallDetails) -> None:
        context, ended = self._context, (grpc.StatusCode.UNKNOWN, "the handler failed")
        try:
            handler: Any = await server.handler(called)
            if handler is None:
                ended = grpc.StatusCode.UNIMPLEMENTED, f"{called.method} is not implemented by this server"
                return
            context.serialize = handler.response_serializer
            answer = await (handler.stream_stream or handler.stream_unary)(None, context)
            if answer is not None:
                await context.write(answer)
            ended = grpc.StatusCode.OK, ""
        except (asyncio.CancelledError, grpc.aio.AbortError):  # `_end` or `abort` has set the status
            ended = grpc.StatusCode.CANCELLED, "the call was cancelled"
        finally:
            context.status = context.status or ended
            await context.answers.put(grpc.aio.EOF)

    async def read(self) -> Any:
        """The next message of a stream, grpc.aio.EOF after the last. Raises AioRpcError."""
        context = self._context
        if context.status is None or not context.answers.empty():
            answer = await context.answers.get()
            if answer is not grpc.aio.EOF:
                return self._deserialize(answer)
        assert context.status is not None
        code, details = context.status
        if code is not grpc.StatusCode.OK:
            raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*context.trailing), details)
        return grpc.aio.EOF

    def __await__(self) -> Generator[Any, None, Any]:
        return self._await_answer().__await__()

    async def _await_answer(self) -> Any:
        try:
            return await self.read()
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def initial_metadata(self) -> Metadata:
        return self._context.initial

    def cancel(self) -> None:
        self._end(grpc.StatusCode.CANCELLED, "the call was cancelled")

    def _end(self, code: grpc.StatusCode, details: str) -> None:
        context = self._context
        if context.status is None or not context.answers.empty():  # messages are lost, whatever the handler did
            context.status = code, details
        while not context.answers.empty():  # the caller reads no more
            context.answers.get_nowait()
        self._task.cancel()

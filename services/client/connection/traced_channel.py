"""A channel whose calls are spans. grpc's own interceptors change what streaming calls can do; this changes nothing."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from services.client.connection import tracing

_Channel = TypeVar("_Channel", bound="grpc.Channel | grpc.aio.Channel")


def traced(channel: _Channel) -> _Channel:
    """`channel`, with a span for each call where the program uses OpenTelemetry."""
    return _TracedChannel(channel) if tracing.in_use() else channel  # type: ignore[return-value]


class _TracedChannel:
    """Everything but the four kinds of call is the channel's own."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def unary_unary(self, method: str, *arguments: Any, **named: Any) -> Any:
        return _TracedMethod(method, self._channel.unary_unary(method, *arguments, **named))

    def unary_stream(self, method: str, *arguments: Any, **named: Any) -> Any:
        return _TracedMethod(method, self._channel.unary_stream(method, *arguments, **named))

    def stream_unary(self, method: str, *arguments: Any, **named: Any) -> Any:
        return _TracedMethod(method, self._channel.stream_unary(method, *arguments, **named))

    def stream_stream(self, method: str, *arguments: Any, **named: Any) -> Any:
        return _TracedMethod(method, self._channel.stream_stream(method, *arguments, **named))


class _TracedMethod:
    def __init__(self, method: str, call: Any) -> None:
        self._method = method
        self._call = call

    def __call__(self, *arguments: Any, metadata: Any = None, **named: Any) -> Any:
        return self._made(self._call, arguments, metadata, named)

    def with_call(self, *arguments: Any, metadata: Any = None, **named: Any) -> Any:
        return self._made(self._call.with_call, arguments, metadata, named)

    def future(self, *arguments: Any, metadata: Any = None, **named: Any) -> Any:
        return self._made(self._call.future, arguments, metadata, named)

    def _made(self, call: Callable[..., Any], arguments: Any, metadata: Any, named: Any) -> Any:
        """The call's answer. Its span ends with the status: here, or where it is a stream or a future, later."""
        span = tracing.begun(self._method.removeprefix("/"), "CLIENT", **tracing.rpc_attributes(self._method))
        try:
            answer = call(*arguments, metadata=tracing.outgoing(span, metadata), **named)
        except grpc.RpcError as error:
            tracing.end(span, error.code())
            raise
        if hasattr(answer, "add_done_callback"):
            answer.add_done_callback(lambda done: _end_with(span, done))
        else:
            tracing.end(span, grpc.StatusCode.OK)
        return answer


def _end_with(span: Any, call: Any) -> None:
    code = call.code()
    if not inspect.isawaitable(code):
        tracing.end(span, code)
        return

    async def ended() -> None:
        tracing.end(span, await code)

    asyncio.get_running_loop().create_task(ended())

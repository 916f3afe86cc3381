"""The clients of a generation server: `Runtime`, and `AsyncRuntime` for event loops, with the same names.

with Runtime.connect("127.0.0.1:50051") as runtime:
    completion = runtime.serve(Request(prompt="def add("), spec_decode=SpecDecodeConfig(method="lookahead"))
    with runtime.stream(Request(prompt="def add(")) as events:
        for event in events: ...
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from copy import copy
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from grpc_health.v1 import health_pb2, health_pb2_grpc

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from services.client.channel import (
    OPTIONS,
    AsyncStream,
    Connection,
    Stream,
    async_channel,
    call_metadata,
    check_size,
    deadline,
    endpoint,
    not_ready,
    plain_value,
    serves,
)
from services.client.errors import DeadlineExceeded, Unavailable, decoded_errors
from services.client.generation import completion_wire
from services.client.generation.completion import Completion, Event, Load, ModelInfo, Tokens
from services.client.generation.completion_wire import Collection, checked_completion, checked_events
from services.client.generation.output_reader import with_calls
from services.client.generation.request import Request, SpecDecodeConfig, as_config, as_request
from services.client.generation.request_wire import detokenize_request, generate_request, tokenize_request
from services.client.identity import ClientTls, Metadata

SERVICE = "kolm.generation.v1.GenerationService"

_GENERATE_SECONDS = 600.0
_LOOKUP_SECONDS = 10.0

_Given = ParamSpec("_Given")
_Value = TypeVar("_Value")


class AsyncRuntime:
    """One connection to a generation server, on one event loop. Every method raises KolmError; timeouts are in seconds.

    A cancelled task cancels its request on the server.
    """

    def __init__(
        self, target: str, token: str | None = None, tls: ClientTls | None = None, channel: Any = None
    ) -> None:
        """Connects lazily. `target` is host:port, https://host:port or any gRPC name; `token` as in
        `services.client.identity`; `channel` is an open channel to it. Raises InvalidArgument as `Connection` does.
        """
        self.target = target
        self._token = token
        self._trace: Metadata = ()
        self._where = endpoint(target, tls)
        self._channel: Any = async_channel(self._where, OPTIONS) if channel is None else channel
        self._stub: Any = GenerationServiceStub(self._channel)

    @classmethod
    def connect(cls, target: str, *, token: str | None = None, tls: ClientTls | None = None) -> Self:
        """Connects lazily, as the constructor does; `wait_ready` waits for the server."""
        return cls(target, token, tls)

    async def wait_ready(self, timeout: float) -> None:  # noqa: ASYNC109
        """Return once the server takes connections. Raises Unavailable after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._channel.channel_ready()
        except TimeoutError:
            raise not_ready(self.target, timeout) from None

    def with_token(self, token: str | None, trace: Metadata = ()) -> Self:
        """The same connection for another caller, with its W3C trace context. Close only the original."""
        other = copy(self)
        other._token, other._trace = token, trace
        return other

    async def serve(
        self,
        request: Request | str | Mapping[str, Any],
        *,
        spec_decode: SpecDecodeConfig | Mapping[str, Any] | None = None,
        timeout: float | None = _GENERATE_SECONDS,  # noqa: ASYNC109 (a deadline that the server knows, as below)
        on_promise: Callable[[bytes | None], None] | None = None,
    ) -> Completion:
        """Generate every choice and return when all have finished. A plain string is a prompt with every
        default; a mapping has the fields of a Request, or of a SpecDecodeConfig.

        `Completion.promise` comes with the answer. With `on_promise` the answer is streamed instead, and `on_promise`
        gets the promise, or None from a server without promises, before the first token; if it raises, the request is
        cancelled.

        Raises ReceiptMismatch if the promise or a receipt does not match this request and this answer.
        """
        request, spec_decode = as_request(request), as_config(spec_decode)
        if on_promise is not None:
            collection = Collection(request.params.n or 1, on_promise)
            await self._each(*self._opened(request, spec_decode, timeout), collection.add)
            return with_calls(collection.completion(), request)
        message = generate_request(request, spec_decode)
        answer, metadata = await self._call_with_metadata(self._stub.Generate, message, timeout)
        return checked_completion(answer, metadata, request, spec_decode)

    def stream(
        self,
        request: Request | str | Mapping[str, Any],
        *,
        spec_decode: SpecDecodeConfig | Mapping[str, Any] | None = None,
        timeout: float | None = _GENERATE_SECONDS,
    ) -> AsyncStream[Event]:
        """Started with its promise, then chunks, then one Finished per choice. Closing the stream cancels the request.

        Its iteration raises ReceiptMismatch as `serve` does.
        """
        return AsyncStream(*self._opened(as_request(request), as_config(spec_decode), timeout))

    async def model_info(self, timeout: float | None = _LOOKUP_SECONDS) -> ModelInfo:  # noqa: ASYNC109
        """The model, its numerics profile, its methods and heads."""
        answer = await self._call(self._stub.GetModelInfo, pb.GetModelInfoRequest(), timeout)
        return completion_wire.model_info(answer)

    async def load(self, timeout: float | None = _LOOKUP_SECONDS) -> Load:  # noqa: ASYNC109
        """The load of the server."""
        return completion_wire.load(await self._call(self._stub.GetLoad, pb.GetLoadRequest(), timeout))

    async def tokenize(
        self,
        request: Request | str | Mapping[str, Any],
        *,
        add_special_tokens: bool | None = None,
        timeout: float | None = _LOOKUP_SECONDS,  # noqa: ASYNC109
    ) -> Tokens:
        """The tokens of a request's prompt or messages, as `serve` would have them read."""
        message = tokenize_request(as_request(request), add_special_tokens)
        return plain_value(Tokens, await self._call(self._stub.Tokenize, message, timeout))

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        model: str | None = None,
        timeout: float | None = _LOOKUP_SECONDS,  # noqa: ASYNC109
    ) -> str:
        """The text of tokens, special ones included."""
        message = detokenize_request(token_ids, model)
        return str((await self._call(self._stub.Detokenize, message, timeout)).text)

    async def serving(self, timeout: float = 5.0) -> bool:  # noqa: ASYNC109
        """Whether the server answers that it serves."""
        check = health_pb2_grpc.HealthStub(self._channel).Check
        try:
            return serves(await self._call(check, health_pb2.HealthCheckRequest(service=SERVICE), timeout))
        except (Unavailable, DeadlineExceeded):
            return False

    def _opened(
        self, request: Request, spec_decode: SpecDecodeConfig | None, timeout: float | None
    ) -> tuple[Any, Callable[[pb.GenerateStreamResponse], Event]]:
        """The call of a stream, and the converter of its messages to events."""
        message = pb.GenerateStreamRequest(request=generate_request(request, spec_decode))
        check_size(message)
        call = self._stub.GenerateStream(message, timeout=deadline(timeout), metadata=self._metadata)
        return call, checked_events(request, spec_decode)

    @property
    def _metadata(self) -> Metadata:
        return (*call_metadata(self._where, self._token), *self._trace)

    async def _call(self, method: Any, request: Any, timeout: float | None) -> Any:  # noqa: ASYNC109
        check_size(request)
        with decoded_errors():
            return await method(request, timeout=deadline(timeout), metadata=self._metadata)

    async def _call_with_metadata(self, method: Any, request: Any, timeout: float | None) -> Any:  # noqa: ASYNC109
        check_size(request)
        with decoded_errors():
            call = method(request, timeout=deadline(timeout), metadata=self._metadata)
            return await call, dict(await call.initial_metadata())

    async def _each(self, call: Any, convert: Callable[[Any], _Value], take: Callable[[_Value], None]) -> None:
        async with AsyncStream(call, convert) as values:
            async for value in values:
                take(value)

    async def close(self) -> None:
        """Cancel running calls and disconnect."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Blocking(AsyncRuntime):
    """An AsyncRuntime over a blocking connection: its coroutines never wait, and end at their first step."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._channel = connection, connection.channel
        self._stub = GenerationServiceStub(connection.channel)

    @property
    def _metadata(self) -> Metadata:
        return self._connection.metadata

    async def _call(self, method: Any, request: Any, timeout: float | None) -> Any:  # noqa: ASYNC109
        return self._connection.call(method, request, timeout)

    async def _call_with_metadata(self, method: Any, request: Any, timeout: float | None) -> Any:  # noqa: ASYNC109
        return self._connection.call_with_metadata(method, request, timeout)

    async def _each(self, call: Any, convert: Callable[[Any], _Value], take: Callable[[_Value], None]) -> None:
        with Stream(call, convert) as values:
            for value in values:
                take(value)


def _blocking(
    method: Callable[Concatenate[AsyncRuntime, _Given], Coroutine[Any, Any, _Value]],
) -> Callable[Concatenate[Runtime, _Given], _Value]:
    """The same method for callers without an event loop: its coroutine never waits (`_Blocking`)."""

    @wraps(method)
    def called(runtime: Runtime, /, *given: _Given.args, **named: _Given.kwargs) -> _Value:
        try:
            method(runtime._calls, *given, **named).send(None)
        except StopIteration as end:
            return cast(_Value, end.value)
        raise AssertionError("a coroutine over a blocking connection has waited")

    return called


class Runtime:
    """One connection to a generation server. Every method raises KolmError; timeouts are in seconds. Thread-safe."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._calls = _Blocking(connection)

    @classmethod
    def connect(cls, target: str, *, wait: float = 0.0, token: str | None = None, tls: ClientTls | None = None) -> Self:
        """Connect as `Connection` does: waits `wait` seconds for the server, or connects lazily."""
        return cls(Connection(target, token, wait, tls))

    serve = _blocking(AsyncRuntime.serve)
    model_info = _blocking(AsyncRuntime.model_info)
    load = _blocking(AsyncRuntime.load)
    tokenize = _blocking(AsyncRuntime.tokenize)
    detokenize = _blocking(AsyncRuntime.detokenize)
    serving = _blocking(AsyncRuntime.serving)

    def stream(
        self,
        request: Request | str | Mapping[str, Any],
        *,
        spec_decode: SpecDecodeConfig | Mapping[str, Any] | None = None,
        timeout: float | None = _GENERATE_SECONDS,
    ) -> Stream[Event]:
        """The same as `AsyncRuntime.stream`, without asyncio."""
        return Stream(*self._calls._opened(as_request(request), as_config(spec_decode), timeout))

    def close(self) -> None:
        """Cancel running calls and disconnect."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

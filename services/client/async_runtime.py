"""The client of a generation server for event loops, with the names of `Runtime`.

async with AsyncRuntime.connect("127.0.0.1:50051") as runtime:
    completion = await runtime.serve(Request(prompt="def add("))
    async with runtime.stream(Request(prompt="def add(")) as events:
        async for event in events: ...
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from typing import Any, Generic, Self, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from services.client import completion_wire
from services.client.channel import OPTIONS, async_channel, shown_to
from services.client.checked import checked_completion, checked_events
from services.client.completion import Completion, Event, Tokens
from services.client.endpoint import endpoint
from services.client.errors import DeadlineExceeded, Unavailable, decode_error, decoded_errors
from services.client.message_size import check_size
from services.client.model_info import ModelInfo
from services.client.request import Request, as_request
from services.client.request_wire import detokenize_request, generate_request, tokenize_request
from services.client.runtime import SERVICE
from services.client.spec_decode import SpecDecodeConfig, as_config
from services.client.tls import ClientTls
from services.client.token import Metadata

_GENERATE_SECONDS = 600.0
_LOOKUP_SECONDS = 10.0

_Value = TypeVar("_Value")


class AsyncRuntime:
    """One connection to a generation server, on one event loop. Every method raises KolmError; timeouts are in seconds.

    A cancelled task cancels its request on the server.
    """

    def __init__(self, target: str, token: str | None = None, tls: ClientTls | None = None) -> None:
        """Connects lazily. `target` is host:port, https://host:port or any gRPC name; `token` as in
        `services.client.token`. Raises InvalidArgument as `Connection` does.
        """
        self.target = target
        self._token = token
        self._where = endpoint(target, tls)
        self._channel = async_channel(self._where, OPTIONS)
        self._stub: Any = GenerationServiceStub(self._channel)

    @classmethod
    def connect(cls, target: str, *, token: str | None = None, tls: ClientTls | None = None) -> Self:
        """As the constructor."""
        return cls(target, token, tls)

    def with_token(self, token: str | None) -> Self:
        """The same connection for another caller. Close only the one that was connected."""
        other = copy(self)
        other._token = token
        return other

    async def serve(
        self,
        request: Request | str | Mapping[str, Any],
        *,
        spec_decode: SpecDecodeConfig | Mapping[str, Any] | None = None,
        timeout: float | None = _GENERATE_SECONDS,  # noqa: ASYNC109 (a deadline that the server knows, as Runtime's)
    ) -> Completion:
        """Generate every choice and return when all have finished. Raises ReceiptMismatch as `Runtime.serve` does."""
        request, spec_decode = as_request(request), as_config(spec_decode)
        message = generate_request(request, spec_decode)
        check_size(message)
        with decoded_errors():
            call = self._stub.Generate(message, timeout=timeout, metadata=self._metadata)
            answer = await call
            metadata = dict(await call.initial_metadata())
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
        request, spec_decode = as_request(request), as_config(spec_decode)
        message = pb.GenerateStreamRequest(request=generate_request(request, spec_decode))
        check_size(message)
        call = self._stub.GenerateStream(message, timeout=timeout, metadata=self._metadata)
        return AsyncStream(call, checked_events(request, spec_decode))

    async def model_info(self, timeout: float | None = _LOOKUP_SECONDS) -> ModelInfo:  # noqa: ASYNC109
        """The model, its numerics profile, its methods and heads."""
        with decoded_errors():
            call = self._stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=timeout, metadata=self._metadata)
            return completion_wire.model_info(await call)

    async def tokenize(
        self,
        request: Request | str | Mapping[str, Any],
        *,
        add_special_tokens: bool | None = None,
        timeout: float | None = _LOOKUP_SECONDS,  # noqa: ASYNC109
    ) -> Tokens:
        """The tokens of a request's prompt or messages, as `serve` would have them read."""
        message = tokenize_request(as_request(request), add_special_tokens)
        check_size(message)
        with decoded_errors():
            return completion_wire.tokens(await self._stub.Tokenize(message, timeout=timeout, metadata=self._metadata))

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        model: str | None = None,
        timeout: float | None = _LOOKUP_SECONDS,  # noqa: ASYNC109
    ) -> str:
        """The text of tokens, special ones included."""
        message = detokenize_request(token_ids, model)
        check_size(message)
        with decoded_errors():
            answer = await self._stub.Detokenize(message, timeout=timeout, metadata=self._metadata)
            return str(answer.text)

    async def serving(self, timeout: float = 5.0) -> bool:  # noqa: ASYNC109
        """Whether the server is there and says that it serves."""
        check: Callable[..., Awaitable[Any]] = health_pb2_grpc.HealthStub(self._channel).Check
        try:
            with decoded_errors():
                answer = await check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=timeout)
        except (Unavailable, DeadlineExceeded):
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    @property
    def _metadata(self) -> Metadata:
        return shown_to(self._where, self._token)

    async def close(self) -> None:
        """Cancel running calls and disconnect."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncStream(Generic[_Value]):
    """The values of a server stream, in order. Leaving its `async with` block, or `close`, cancels the call."""

    def __init__(self, call: Any, convert: Callable[[Any], _Value]) -> None:
        self._call = call
        self._convert = convert

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _Value:
        try:
            message = await self._call.read()
        except grpc.RpcError as error:
            raise decode_error(error) from None
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return self._convert(message)

    def close(self) -> None:
        """Cancel the call; the server stops working on it."""
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

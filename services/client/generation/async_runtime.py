"""The client of a generation server for event loops, with the names of `Runtime`.

async with AsyncRuntime.connect("127.0.0.1:50051") as runtime:
    completion = await runtime.serve(Request(prompt="def add("))
    async with runtime.stream(Request(prompt="def add(")) as events:
        async for event in events: ...
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from typing import Any, Generic, Self, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from services.client.connection.channel import OPTIONS, async_channel, shown_to
from services.client.connection.endpoint import endpoint
from services.client.connection.message_size import check_size
from services.client.connection.tls import ClientTls
from services.client.connection.token import Metadata
from services.client.errors import DeadlineExceeded, Unavailable, decode_error, decoded_errors
from services.client.generation import completion_wire
from services.client.generation.checked import checked_completion, checked_events
from services.client.generation.collection import Collection
from services.client.generation.completion import Completion, Event, Replayed, Tokens
from services.client.generation.model_info import Load, ModelInfo
from services.client.generation.request import Request, SamplingParams, as_request
from services.client.generation.request_wire import (
    detokenize_request,
    generate_request,
    replay_request,
    tokenize_request,
)
from services.client.generation.runtime import SERVICE
from services.client.generation.spec_decode import SpecDecodeConfig, as_config
from services.client.generation.tool_call_reader import with_calls

_GENERATE_SECONDS = 600.0
_LOOKUP_SECONDS = 10.0

_Value = TypeVar("_Value")


class AsyncRuntime:
    """One connection to a generation server, on one event loop. Every method raises KolmError; timeouts are in seconds.

    A cancelled task cancels its request on the server.
    """

    def __init__(self, target: str, token: str | None = None, tls: ClientTls | None = None) -> None:
        """Connects lazily. `target` is host:port, https://host:port or any gRPC name; `token` as in
        `services.client.connection.token`. Raises InvalidArgument as `Connection` does.
        """
        self.target = target
        self._token = token
        self._where = endpoint(target, tls)
        self._channel = async_channel(self._where, OPTIONS)
        self._stub: Any = GenerationServiceStub(self._channel)

    @classmethod
    def connect(cls, target: str, *, token: str | None = None, tls: ClientTls | None = None) -> Self:
        """As the constructor. `wait_ready` waits for the server, which the event loop cannot do here."""
        return cls(target, token, tls)

    async def wait_ready(self, timeout: float) -> None:  # noqa: ASYNC109
        """Return once the server takes connections. Raises Unavailable after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._channel.channel_ready()
        except TimeoutError:
            raise Unavailable(f"no server at {self.target} within {timeout:g} s", reason="UNAVAILABLE") from None

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
        on_promise: Callable[[bytes | None], None] | None = None,
    ) -> Completion:
        """Generate every choice and return when all have finished: as `Runtime.serve` does."""
        request, spec_decode = as_request(request), as_config(spec_decode)
        if on_promise is not None:
            collection = Collection(request.params.n or 1, on_promise)
            async with self.stream(request, spec_decode=spec_decode, timeout=timeout) as events:
                async for event in events:
                    collection.add(event)
            return with_calls(collection.completion(), request)
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

    async def replay(
        self,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        choice: int,
        max_output_tokens: int,
        base_cid: str,
        tokenizer_cid: str,
        profile_cid: str,
        adapter_cid: str | None = None,
        timeout: float | None = _GENERATE_SECONDS,  # noqa: ASYNC109
    ) -> Replayed:
        """Decode again with speculation off. `sampling` has every field set, as the receipt has."""
        message = replay_request(
            prompt_token_ids,
            sampling,
            choice=choice,
            max_output_tokens=max_output_tokens,
            base_cid=base_cid,
            tokenizer_cid=tokenizer_cid,
            profile_cid=profile_cid,
            adapter_cid=adapter_cid,
        )
        return completion_wire.replayed(await self._call(self._stub.Replay, message, timeout))

    async def model_info(self, timeout: float | None = _LOOKUP_SECONDS) -> ModelInfo:  # noqa: ASYNC109
        """The model, its numerics profile, its methods and heads."""
        return completion_wire.model_info(await self._call(self._stub.GetModelInfo, pb.GetModelInfoRequest(), timeout))

    async def load(self, timeout: float | None = _LOOKUP_SECONDS) -> Load:  # noqa: ASYNC109
        """How busy the server is."""
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
        return completion_wire.tokens(await self._call(self._stub.Tokenize, message, timeout))

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        model: str | None = None,
        timeout: float | None = _LOOKUP_SECONDS,  # noqa: ASYNC109
    ) -> str:
        """The text of tokens, special ones included."""
        answer = await self._call(self._stub.Detokenize, detokenize_request(token_ids, model), timeout)
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

    async def _call(self, method: Any, request: Any, timeout: float | None) -> Any:  # noqa: ASYNC109
        check_size(request)
        with decoded_errors():
            return await method(request, timeout=timeout, metadata=self._metadata)

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

"""The client of a generation server.

with Runtime.connect("127.0.0.1:50051") as runtime:
    completion = runtime.serve(Request(prompt="def add("), spec_decode=SpecDecodeConfig(method="lookahead"))
    with runtime.stream(Request(prompt="def add(")) as events:
        for event in events: ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from services.client.connection.channel import Connection, Stream
from services.client.connection.message_size import check_size
from services.client.connection.tls import ClientTls
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
from services.client.generation.spec_decode import SpecDecodeConfig, as_config
from services.client.generation.tool_call_reader import with_calls

SERVICE = "kolm.generation.v1.GenerationService"

_GENERATE_SECONDS = 600.0
_LOOKUP_SECONDS = 10.0


class Runtime:
    """One connection to a generation server. Every method raises KolmError; timeouts are in seconds."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._stub = GenerationServiceStub(connection.channel)

    @classmethod
    def connect(cls, target: str, *, wait: float = 0.0, token: str | None = None, tls: ClientTls | None = None) -> Self:
        """Connect as `Connection` does: waits `wait` seconds for the server, or connects lazily."""
        return cls(Connection(target, token, wait, tls))

    def serve(
        self,
        request: Request | str | Mapping[str, Any],
        *,
        spec_decode: SpecDecodeConfig | Mapping[str, Any] | None = None,
        timeout: float | None = _GENERATE_SECONDS,
        on_promise: Callable[[bytes | None], None] | None = None,
    ) -> Completion:
        """Generate every choice and return when all have finished. A plain string is a prompt with every
        default; a mapping has the fields of a Request, or of a SpecDecodeConfig.

        gRPC hands `Completion.promise` over together with the answer. With `on_promise` the answer is streamed instead,
        and `on_promise` gets the promise, or None from a server that makes none, before the first token; if it raises,
        the request is cancelled. A stream takes no idempotency key.

        Raises ReceiptMismatch where the promise or a receipt is not about this request and this answer.
        """
        request, spec_decode = as_request(request), as_config(spec_decode)
        if on_promise is not None:
            collection = Collection(request.params.n or 1, on_promise)
            with self.stream(request, spec_decode=spec_decode, timeout=timeout) as events:
                for event in events:
                    collection.add(event)
            return with_calls(collection.completion(), request)
        message = generate_request(request, spec_decode)
        answer, metadata = self.connection.call_with_metadata(self._stub.Generate, message, timeout)
        return checked_completion(answer, metadata, request, spec_decode)

    def stream(
        self,
        request: Request | str | Mapping[str, Any],
        *,
        spec_decode: SpecDecodeConfig | Mapping[str, Any] | None = None,
        timeout: float | None = _GENERATE_SECONDS,
    ) -> Stream[Event]:
        """Started with its promise, then chunks, then one Finished per choice. Closing the stream cancels the request.

        Its iteration raises ReceiptMismatch as `serve` does.
        """
        request, spec_decode = as_request(request), as_config(spec_decode)
        message = pb.GenerateStreamRequest(request=generate_request(request, spec_decode))
        check_size(message)
        call = self._stub.GenerateStream(message, timeout=timeout, metadata=self.connection.metadata)
        return Stream(call, checked_events(request, spec_decode))

    def replay(
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
        timeout: float | None = _GENERATE_SECONDS,
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
        return completion_wire.replayed(self.connection.call(self._stub.Replay, message, timeout))

    def model_info(self, timeout: float | None = _LOOKUP_SECONDS) -> ModelInfo:
        """The model, its numerics profile, its methods and heads."""
        return completion_wire.model_info(
            self.connection.call(self._stub.GetModelInfo, pb.GetModelInfoRequest(), timeout)
        )

    def load(self, timeout: float | None = _LOOKUP_SECONDS) -> Load:
        """How busy the server is."""
        return completion_wire.load(self.connection.call(self._stub.GetLoad, pb.GetLoadRequest(), timeout))

    def tokenize(
        self,
        request: Request | str | Mapping[str, Any],
        *,
        add_special_tokens: bool | None = None,
        timeout: float | None = _LOOKUP_SECONDS,
    ) -> Tokens:
        """The tokens of a request's prompt or messages, as `serve` would have them read."""
        message = tokenize_request(as_request(request), add_special_tokens)
        return completion_wire.tokens(self.connection.call(self._stub.Tokenize, message, timeout))

    def detokenize(
        self, token_ids: Sequence[int], *, model: str | None = None, timeout: float | None = _LOOKUP_SECONDS
    ) -> str:
        """The text of tokens, special ones included."""
        return self.connection.call(self._stub.Detokenize, detokenize_request(token_ids, model), timeout).text

    def serving(self, timeout: float = 5.0) -> bool:
        """Whether the server is there and says that it serves."""
        return self.connection.serving(SERVICE, timeout)

    def close(self) -> None:
        """Cancel running calls and disconnect."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

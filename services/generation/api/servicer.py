"""GenerationService: convert, call, convert. The target runs on the engine's thread, never on the event loop."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, TypeVar

import grpc

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceServicer
from services.generation.api import messages
from services.generation.api.runner import Completed, Generation, LedgerSide, Run
from services.generation.engine.backend import Backend
from services.generation.engine.events import Chunk, TokenLogprobs
from services.generation.engine.text.grammar import field_of
from services.generation.engine.text.tokenizer import TextCodec
from services.generation.receipts.issuer import SignedPromise
from services.generation.requests.resolution import Identity, Resolved, Resolver, engine_errors
from services.runtime.access import tenant_of_call
from services.runtime.errors import DeadlineExceeded, InvalidArgument, KolmError

SERVICE = "kolm.generation.v1.GenerationService"

_PROMISE_KEY = "kolm-promise-bin"
_INLINE_TOKENS = 500  # of log-probabilities that are spelled on the event loop, in about a millisecond
_KEPT_TOKENS = 65_536  # whose spelling is cached

Context = grpc.aio.ServicerContext[Any, Any]
_Message = TypeVar("_Message")


class SpeculationDeviated(KolmError):
    """An inline replay with speculation off differed from the stream that was served, as its receipts record."""

    code = grpc.StatusCode.INTERNAL

    def __init__(self, methods: Sequence[str], receipt_ids: Sequence[str]) -> None:
        """`methods`: draft methods of the request in the order of their use."""
        super().__init__(
            f"decoding again with speculation off gave another result than {', '.join(methods)}; do not use this "
            "output. Speculation is halted on this server until the ledger has the halt and an operator resumes it",
            reason="SPEC_DECODE_DEVIATION",
            metadata={"method": methods[0], "methods": ",".join(methods), "receipt_ids": ",".join(receipt_ids)},
        )


class GenerationServicer(GenerationServiceServicer):
    """Serves one base model, on one event loop."""

    def __init__(
        self,
        identity: Identity,
        tokenizer: TextCodec,
        resolver: Resolver,
        generation: Generation,
        engine: Backend,
        ledger: LedgerSide,
    ) -> None:
        self.identity = identity
        self.tokenizer = tokenizer
        self._spell = lru_cache(_KEPT_TOKENS)(partial(messages.spelled, tokenizer))
        self._resolver = resolver
        self._generation = generation
        self.engine = engine
        self._ledger = ledger
        self._started = time.monotonic()

    def interrupt(self) -> None:
        """End the running requests because the server stops: see `Generation.interrupt`."""
        self._generation.interrupt()

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        """Generate whole answers. The promise is sent as initial metadata, before the first token."""
        request.tenant = tenant_of_call(request.tenant)
        resolved = await self._resolve(request, context)
        completed: dict[int, Completed] = {}
        logprobs: list[list[TokenLogprobs]] = [[] for _ in range(resolved.choices)]
        with engine_errors(_input_field(request)):
            async with self._generation.run(resolved) as run:
                with suppress(grpc.aio.BaseError):  # the caller has disconnected
                    await context.send_initial_metadata(((_PROMISE_KEY, _promise_of(run).envelope),))
                async for event in run.events():
                    if isinstance(event, Chunk):
                        logprobs[event.choice] += event.logprobs
                    else:
                        completed[event.choice] = event
        resolved, ordered = run.resolved, [completed[choice] for choice in range(resolved.choices)]
        _refuse_late(resolved, ordered)
        _refuse_deviations(resolved, ordered)
        _refuse_limits(resolved, ordered)
        make = partial(messages.response_message, resolved, ordered, logprobs, self.identity, self._spell)
        return await self._made(make, [position for each in logprobs for position in each], resolved.tenant)

    async def GenerateStream(
        self, request: pb.GenerateStreamRequest, context: Context
    ) -> AsyncIterator[pb.GenerateStreamResponse]:
        request.request.tenant = tenant_of_call(request.request.tenant, "request.tenant")
        resolved = await self._resolve(request.request, context)
        completed: list[Completed] = []
        with engine_errors(_input_field(request.request)):
            async with self._generation.run(resolved, streamed=True) as run:
                resolved = run.resolved
                yield messages.started_event(resolved, self.identity, _promise_of(run))
                async for event in run.events():
                    if isinstance(event, Chunk):
                        make = partial(messages.chunk_event, event, self._spell)
                        yield await self._made(make, event.logprobs, resolved.tenant)
                    else:
                        completed.append(event)
                        if event.checked.identical is not False and not event.outcome.reached_limit:
                            yield messages.finished_event(resolved, event)
        _refuse_late(resolved, completed)
        _refuse_deviations(resolved, completed)
        _refuse_limits(resolved, completed)

    async def _resolve(self, request: pb.GenerateRequest, context: Context) -> Resolved:
        with self._generation.counting_refusals(), engine_errors(_input_field(request)):
            return await self._resolver.resolve(request, _deadline(context))

    async def _made(self, make: Callable[[], _Message], logprobs: Sequence[TokenLogprobs], tenant: str) -> _Message:
        """A message, made on a thread if it spells many tokens, or some by another engine's tokenizer, with a call for
        each. Raises Unavailable if that does not answer.
        """
        spelled = sum(1 + len(position.top) for position in logprobs)
        if spelled <= (0 if self.tokenizer.is_remote else _INLINE_TOKENS):
            return make()
        with engine_errors("prompt"):
            return await self._resolver.threads.run(make, tenant)

    async def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Context) -> pb.GetModelInfoResponse:
        halts = self._ledger.halts
        return messages.model_info_message(self.identity, halts.scopes, halts.epoch, self._ledger.heads.state)

    async def GetLoad(self, request: pb.GetLoadRequest, context: Context) -> pb.GetLoadResponse:
        uptime = time.monotonic() - self._started
        return messages.load_message(self.engine.load(), self._ledger.outbox.pending, uptime)

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        with engine_errors("prompt"):
            ids = await self._resolver.tokenize(request, tenant_of_call(""))
        return pb.TokenizeResponse(token_ids=ids, context_length=self.identity.context_length)

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:
        with engine_errors("token_ids"):
            text = await self._resolver.detokenize(request, tenant_of_call(""))
        return pb.DetokenizeResponse(text=text)


def _promise_of(run: Run) -> SignedPromise:
    """The promise of an accepted run."""
    assert run.promise is not None
    return run.promise


def _input_field(request: pb.GenerateRequest) -> str:
    return request.WhichOneof("input") or "prompt"


def _deadline(context: Context) -> float:
    """The call's deadline in seconds of `time.perf_counter`."""
    remaining = context.time_remaining()
    return math.inf if remaining is None else time.perf_counter() + remaining


def _refuse_late(resolved: Resolved, completed: list[Completed]) -> None:
    """Raise DeadlineExceeded if the engine cancelled a choice at the deadline, before gRPC ended the call."""
    if time.perf_counter() > resolved.deadline and any(each.outcome.finish_reason == "cancelled" for each in completed):
        raise DeadlineExceeded("the call's deadline passed before the answer was whole")


def _refuse_deviations(resolved: Resolved, completed: list[Completed]) -> None:
    deviated = [each for each in completed if each.checked.identical is False]
    if deviated:
        ran = (method for each in deviated for method, _ in each.outcome.metrics.passes_by_method if method != "off")
        raise SpeculationDeviated(
            tuple(dict.fromkeys((resolved.decision.method, *ran))), tuple(each.receipt.receipt_id for each in deviated)
        )


def _refuse_limits(resolved: Resolved, completed: list[Completed]) -> None:
    """Raise InvalidArgument if a constraint became too costly on the way: the same request always ends so."""
    limited = [each for each in completed if each.outcome.reached_limit]
    if limited:
        source, by_tools = resolved.sampling.structured_outputs, resolved.tool_calls is not None
        raise InvalidArgument(
            "messages.tools" if source is None or by_tools else f"sampling.{field_of(source)}",
            f"became too costly to follow after {len(limited[0].outcome.token_ids)} tokens; make it simpler: less "
            "repetition inside of repetition, fewer ways to read one text",
            metadata={"receipt_ids": ",".join(each.receipt.receipt_id for each in limited)},
        )

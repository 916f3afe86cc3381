"""`vllm.grpc.engine.VllmEngine`, as routers for vLLM workers speak it: every request becomes a GenerateStream of this
server, with its receipts, roles and limits.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, TypeVar

import grpc
from smg_grpc_proto.generated import common_pb2 as common
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineServicer as Base

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import sampling_pb2
from services.generation.api.servicer import GenerationServicer
from services.generation.doors import vllm_messages as messages
from services.generation.doors.tokenizer_archive import TokenizerArchive
from services.generation.requests.sampling import read_choices
from services.generation.requests.server_identity import Identity
from services.runtime.access.caller import tenant_of_call

SERVICE = "vllm.grpc.engine.VllmEngine"

Context = grpc.aio.ServicerContext[Any, Any]
_Value = TypeVar("_Value")


class VllmEngineServicer(Base):  # type: ignore[misc]  # generated without types
    """Embed, FlushCache, profiles and KV events are UNIMPLEMENTED: routers then ask for loads."""

    def __init__(
        self, generation: GenerationServicer, identity: Identity, archive: TokenizerArchive, max_sequences: int
    ) -> None:
        self._generation, self._identity, self._archive = generation, identity, archive
        self._max_sequences = max_sequences
        self._running: defaultdict[tuple[str, str], list[asyncio.Event]] = defaultdict(list)  # by tenant and request
        self._started, self._last = time.monotonic(), 0.0

    async def Generate(self, request: vllm.GenerateRequest, context: Context) -> AsyncIterator[vllm.GenerateResponse]:
        """With `stream`, chunks and then one complete per choice; without, the completes."""
        self._last = time.time()
        name, end = (tenant_of_call(""), request.request_id), asyncio.Event()
        tokens: defaultdict[int, list[int]] = defaultdict(list)
        logprobs: defaultdict[int, list[sampling_pb2.PositionLogprobs]] = defaultdict(list)
        open_choices, prompt_tokens = set[int](), 0
        self._running[name].append(end)
        try:
            room = await self._room(request, context)
            asked = pb.GenerateStreamRequest(request=messages.generate_request(request, room))
            open_choices.update(range(read_choices(asked.request.sampling)))
            async with aclosing(self._generation.GenerateStream(asked, context)) as events:  # type: ignore[type-var]
                async for event in _until(events, end):
                    match event.WhichOneof("event"):
                        case "started":
                            prompt_tokens = event.started.resolved.prompt_tokens
                        case "chunk":
                            index = event.chunk.index
                            tokens[index] += event.chunk.token_ids
                            logprobs[index] += event.chunk.logprobs
                            if request.stream and event.chunk.token_ids:
                                yield messages.chunk(event.chunk, prompt_tokens, len(tokens[index]))
                        case "finished":
                            index = event.finished.index
                            open_choices.discard(index)
                            yield messages.complete(event.finished, tokens[index], logprobs[index])
        finally:
            self._running[name].remove(end)
            if not self._running[name]:
                del self._running[name]
        for index in sorted(open_choices):
            yield messages.aborted(index, tokens[index], prompt_tokens)

    async def Abort(self, request: vllm.AbortRequest, context: Context) -> vllm.AbortResponse:
        """Ends the caller's tenant's running requests of these ids; others are not there."""
        tenant = tenant_of_call("")
        for request_id in request.request_ids:
            for end in self._running.get((tenant, request_id), ()):
                end.set()
        return vllm.AbortResponse()

    async def HealthCheck(self, request: vllm.HealthCheckRequest, context: Context) -> vllm.HealthCheckResponse:
        alive = self._generation.engine.alive
        return vllm.HealthCheckResponse(healthy=alive, message="" if alive else "the engine has stopped")

    async def GetModelInfo(self, request: vllm.GetModelInfoRequest, context: Context) -> vllm.GetModelInfoResponse:
        identity = self._identity
        return vllm.GetModelInfoResponse(
            model_path=identity.name,
            served_model_name=identity.name,
            tokenizer_path=identity.name,
            is_generation=True,
            max_context_length=identity.context_length,
            max_req_input_len=identity.context_length - 1,
            vocab_size=identity.vocab_size,
            architectures=[identity.architecture],
            eos_token_ids=identity.eos_token_ids,
            default_sampling_params_json="{}",
        )

    async def GetServerInfo(self, request: vllm.GetServerInfoRequest, context: Context) -> vllm.GetServerInfoResponse:
        load = self._generation.engine.load()
        return vllm.GetServerInfoResponse(
            active_requests=load.running + load.waiting,
            last_receive_timestamp=self._last,
            uptime_seconds=time.monotonic() - self._started,
            server_type="vllm-grpc",
            data_parallel_size=1,
            max_num_seqs=self._max_sequences,
            constrained_decoding_start="first_token",
        )

    async def GetLoads(self, request: vllm.GetLoadsRequest, context: Context) -> vllm.GetLoadsResponse:
        load = self._generation.engine.load()
        used = load.blocks_used / load.blocks_total
        return vllm.GetLoadsResponse(
            timestamp=datetime.now(UTC).isoformat(),
            version=version("kolm-serve"),
            dp_rank_count=1,
            loads=[
                vllm.SchedulerLoad(
                    num_running_reqs=load.running,
                    num_waiting_reqs=load.waiting,
                    num_total_reqs=load.running + load.waiting,
                    token_usage=used,
                    utilization=max(used, load.running / self._max_sequences),
                    max_running_requests=self._max_sequences,
                )
            ],
        )

    async def GetTokenizer(
        self, request: common.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[common.GetTokenizerChunk]:
        await asyncio.to_thread(lambda: self._archive.data)
        for data, digest in self._archive.pieces():
            yield common.GetTokenizerChunk(data=data, sha256=digest)

    async def _room(self, request: vllm.GenerateRequest, context: Context) -> int | None:
        """The room for output in the context, at least one token, where the request names no limit."""
        if request.sampling_params.HasField("max_tokens"):
            return None
        length = len(request.tokenized.input_ids)
        if request.WhichOneof("input") == "text":
            asked = pb.TokenizeRequest(prompt=request.text)
            length = len((await self._generation.Tokenize(asked, context)).token_ids)
        return max(1, self._identity.context_length - length)


async def _until(events: AsyncIterator[_Value], end: asyncio.Event) -> AsyncIterator[_Value]:
    """The events, as long as `end` is not set."""
    ended = asyncio.ensure_future(end.wait())
    try:
        while True:
            coming = asyncio.ensure_future(anext(events, None))
            try:
                await asyncio.wait((coming, ended), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not coming.done():
                    coming.cancel()
                    await asyncio.wait((coming,))
            if coming.cancelled() or (event := coming.result()) is None:
                return
            yield event
    finally:
        ended.cancel()

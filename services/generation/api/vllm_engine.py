"""The service vllm.grpc.engine (smg-grpc-proto): its messages, its tokenizer archive, and how it is registered."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tempfile
import time
import zipfile
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import grpc
from smg_grpc_proto.generated import common_pb2 as common
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineServicer as Base
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import add_VllmEngineServicer_to_server

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import sampling_pb2
from services.generation.api.servicer import GenerationServicer
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.requests.parameters import read_choices
from services.generation.requests.resolution import Identity
from services.runtime.access import tenant_of_call
from services.runtime.errors import InvalidArgument
from services.runtime.server import Mount

_PIECE = 1 << 20  # bytes; messages may have 4 MiB
_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that zip knows: the same tokenizer has the same archive


@dataclass
class TokenizerArchive:
    """A zip of tokenizer.json, tokenizer_config.json and the chat template, made when it is first asked for."""

    tokenizer: Tokenizer

    @cached_property
    def data(self) -> bytes:
        buffer = io.BytesIO()
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            self.tokenizer.save(Path(folder))
            for file in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
                entry = zipfile.ZipInfo(file.relative_to(folder).as_posix(), _DATE)
                archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
        return buffer.getvalue()

    def pieces(self) -> Iterator[tuple[bytes, str]]:
        """In order; with the last one comes the SHA-256 of the whole in hex, with the others nothing."""
        for begin in range(0, len(self.data), _PIECE):
            last = begin + _PIECE >= len(self.data)
            yield self.data[begin : begin + _PIECE], hashlib.sha256(self.data).hexdigest() if last else ""


_CONSTRAINTS = {"json_schema": "json", "regex": "regex", "grammar": "grammar", "json_object": "json_object"}
_UNKNOWN = ("kv_transfer_params", "kv_transfer_params_json", "mm_inputs", "extra_mm_inputs", "media_refs")
_FINISHED = {
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_CANCELLED: "abort",
    pb.FINISH_REASON_ERROR: "error",
}


def generate_request(request: vllm.GenerateRequest, room: int | None) -> pb.GenerateRequest:
    """`room` is what the context leaves for output: vLLM's default. Raises InvalidArgument for what kolm has not."""
    given = {field.name for field, _ in request.ListFields()}
    if unknown := next((name for name in _UNKNOWN if name in given), None):
        raise InvalidArgument(unknown, "is not supported: one server prefills and decodes, from text alone")
    message = pb.GenerateRequest(request_id=request.request_id, sampling=_sampling(request.sampling_params, room))
    match request.WhichOneof("input"):
        case "tokenized":
            message.token_ids.ids.extend(request.tokenized.input_ids)
        case "text":
            message.prompt = request.text
        case _:
            raise InvalidArgument("tokenized", "is missing; expected tokenized or text")
    return message


def _sampling(asked: vllm.SamplingParams, room: int | None) -> sampling_pb2.SamplingParams:
    """Zeros of fields without presence are absent: no router sends them for anything else."""
    for name in ("prompt_logprobs", "truncate_prompt_tokens", "structural_tag"):
        if asked.HasField(name):
            raise InvalidArgument(f"sampling_params.{name}", "is not supported; leave it out")
    message = sampling_pb2.SamplingParams(
        temperature=asked.temperature if asked.HasField("temperature") else 1.0,
        max_tokens=asked.max_tokens if asked.HasField("max_tokens") else room,
        stop=asked.stop,
        stop_token_ids=asked.stop_token_ids,
    )
    for name in ("top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "min_tokens", "n"):
        if value := getattr(asked, name):
            setattr(message, name, value)
    if 0 < asked.top_k < 2**31:  # -1 is off too, and unsigned on its way
        message.top_k = asked.top_k
    if asked.ignore_eos:
        message.ignore_eos = True
    if asked.HasField("logprobs"):
        if asked.logprobs < 0:
            raise InvalidArgument("sampling_params.logprobs", f"is {asked.logprobs}; expected 0 to 20")
        message.logprobs = asked.logprobs
    if asked.HasField("seed"):
        message.seed = asked.seed % 2**64
    for token, bias in asked.logit_bias.items():
        if token < 0:
            raise InvalidArgument("sampling_params.logit_bias", f"holds {token}; expected token ids")
        message.logit_bias[token] = bias
    _constrain(message, asked)
    return message


def _constrain(message: sampling_pb2.SamplingParams, asked: vllm.SamplingParams) -> None:
    kind = asked.WhichOneof("constraint")
    if kind == "choice":
        message.structured_outputs.choice.texts.extend(asked.choice.choices)
    elif kind is not None:
        setattr(message.structured_outputs, _CONSTRAINTS[kind], getattr(asked, kind))


def chunk(event: pb.Chunk, prompt_tokens: int, completion_tokens: int) -> vllm.GenerateResponse:
    return vllm.GenerateResponse(
        chunk=vllm.GenerateStreamChunk(
            token_ids=event.token_ids,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            output_logprobs=_logprobs(event.logprobs),
            index=event.index,
        )
    )


def complete(
    finished: pb.Finished, token_ids: Sequence[int], logprobs: Sequence[sampling_pb2.PositionLogprobs]
) -> vllm.GenerateResponse:
    """With all tokens of the choice, streamed or not."""
    usage, metrics = finished.usage, finished.metrics
    message = vllm.GenerateComplete(
        output_ids=token_ids,
        finish_reason=_FINISHED[finished.finish_reason],
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_prompt_tokens,
        output_logprobs=_logprobs(logprobs),
        index=finished.index,
        spec_accepted_tokens=metrics.num_accepted_tokens,
        spec_draft_tokens=metrics.num_draft_tokens,
    )
    match finished.WhichOneof("stop_reason"):
        case "stop_string":
            message.matched_stop_str = finished.stop_string
        case "stop_token_id":
            message.matched_token_id = finished.stop_token_id
    return vllm.GenerateResponse(complete=message)


def aborted(index: int, token_ids: Sequence[int], prompt_tokens: int) -> vllm.GenerateResponse:
    """The answer for a choice that somebody has ended."""
    return vllm.GenerateResponse(
        complete=vllm.GenerateComplete(
            output_ids=token_ids,
            finish_reason="abort",
            prompt_tokens=prompt_tokens,
            completion_tokens=len(token_ids),
            index=index,
        )
    )


def _logprobs(positions: Sequence[sampling_pb2.PositionLogprobs]) -> vllm.OutputLogProbs | None:
    if not positions:
        return None
    return vllm.OutputLogProbs(
        token_logprobs=[each.chosen.logprob for each in positions],
        token_ids=[each.chosen.token_id for each in positions],
        top_logprobs=[
            vllm.TopLogProbs(values=[o.logprob for o in each.top], token_ids=[o.token_id for o in each.top])
            for each in positions
        ],
    )


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
            asked = pb.GenerateStreamRequest(request=generate_request(request, room))
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
                                yield chunk(event.chunk, prompt_tokens, len(tokens[index]))
                        case "finished":
                            index = event.finished.index
                            open_choices.discard(index)
                            yield complete(event.finished, tokens[index], logprobs[index])
        finally:
            self._running[name].remove(end)
            if not self._running[name]:
                del self._running[name]
        for index in sorted(open_choices):
            yield aborted(index, tokens[index], prompt_tokens)

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


def vllm_engine(generation: GenerationServicer, max_sequences: int) -> Mount:
    """Beside GenerationService, on its port."""
    assert isinstance(generation.tokenizer, Tokenizer)  # the settings see to it
    archive = TokenizerArchive(generation.tokenizer)
    servicer = VllmEngineServicer(generation, generation.identity, archive, max_sequences)
    return Mount(SERVICE, lambda server: add_VllmEngineServicer_to_server(servicer, server))

"""A generation server with scripted answers, over real sockets."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import sampling_pb2, speculation_pb2
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceServicer, add_GenerationServiceServicer_to_server
from ledger.documents.receipt import PromptPart, SpecDecode
from ledger.documents.signed_document import sign_document
from ledger.encoding.canonical import canonical
from ledger.encoding.commitment import (
    MESSAGES_DOMAIN,
    OUTPUT_DOMAIN,
    OUTPUT_TEXT_DOMAIN,
    PROMPT_DOMAIN,
    PROMPT_TEXT_DOMAIN,
    commit,
    commit_text,
)
from ledger.encoding.text_forms import cid
from services.client.generation.runtime import SERVICE
from services.generation.requests.parameters import read_sampling, receipt_sampling
from services.generation.requests.resolution import CONTEXT_LENGTH_EXCEEDED
from services.runtime.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from services.runtime.server import Mount
from tests.mutations import replace
from tests.unit.ledger.builders import BASE, KEYS, PROFILE, receipt

METRICS = speculation_pb2.SpeculationMetrics(
    num_drafts=3,
    num_draft_tokens=9,
    num_accepted_tokens=4,
    acceptance_rate=4 / 9,
    mean_acceptance_length=2.0,
    target_passes=4,
    first_token_seconds=0.25,
    decode_seconds=0.5,
    wall_clock_speedup=1.5,
    speedup_basis="replayed",
    method="lookahead",
    requested_method="auto",
    fallback_reason="no_head",
)
PROMISED = "0198c3f2-7e1a-7d3b-9c41-5a6f0e2b8d17"
"""The id of the receipt of a stream that hangs."""
_PROMPT = (1, 2)
_SALT = bytes(32)
_TOKENIZER = cid(b"tokenizer")


class ScriptedGeneration(GenerationServiceServicer):
    """Answers "one two" with escape codes in it; the prompt decides about everything else."""

    def __init__(self) -> None:
        self.requests: list[pb.GenerateRequest] = []
        self.running = threading.Event()
        self.cancelled = threading.Event()
        self.proven = True

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> pb.GenerateResponse:
        await self._act(request)
        choices = [_choice(request, index, _finish_reason(request)) for index in range(request.sampling.n or 1)]
        return pb.GenerateResponse(choices=choices, usage=_usage(), metrics=METRICS, resolved=_resolved(request))

    async def GenerateStream(
        self, request: pb.GenerateStreamRequest, context: Any
    ) -> AsyncIterator[pb.GenerateStreamResponse]:
        await self._act(request.request)
        promised = [PROMISED] if _asked(request.request) == "go on" else []
        yield pb.GenerateStreamResponse(started=pb.Started(resolved=_resolved(request.request), receipt_ids=promised))
        for text in ("one ", "two"):
            chunk = pb.Chunk(text=text, token_ids=[1], logprobs=_logprobs(request.request))
            yield pb.GenerateStreamResponse(chunk=chunk)
            if _asked(request.request) == "go on":
                await self._hang()
        reason = _finish_reason(request.request)
        receipt = _receipt(request.request, 0, reason, [1, 1], "one two")
        finished = pb.Finished(finish_reason=reason, usage=_usage(), metrics=METRICS, receipt=receipt)
        yield pb.GenerateStreamResponse(finished=finished)

    async def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Any) -> pb.GetModelInfoResponse:
        return pb.GetModelInfoResponse(
            model="scripted", methods=["off", "lookahead"], probe_passed=self.proven, context_length=4096
        )

    async def GetLoad(self, request: pb.GetLoadRequest, context: Any) -> pb.GetLoadResponse:
        return pb.GetLoadResponse(running=1, outbox_pending=2)

    async def _act(self, request: pb.GenerateRequest) -> None:
        self.requests.append(request)
        asked = _asked(request)
        if asked == "halted":
            raise FailedPrecondition("an audit has halted lookahead on this base", reason="SPEC_DECODE_HALTED")
        if asked == "wrong":
            raise InvalidArgument("spec_decode.k", "is 0; expected a whole number from 1 to 16")
        if asked == "too long":
            problem = "9 tokens leave no room for output: this model's maximum context length is 9 tokens"
            raise InvalidArgument("messages", problem, reason=CONTEXT_LENGTH_EXCEEDED)
        if asked == "busy" and [_asked(each) for each in self.requests].count("busy") < 3:
            raise ResourceExhausted("8 requests are waiting already; try again later", retry_after=0.01)
        if asked == "always busy":
            raise ResourceExhausted("8 requests are waiting already; try again later", retry_after=0.01)
        if asked == "forever":
            await self._hang()

    async def _hang(self) -> None:
        self.running.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()


def mount(servicer: ScriptedGeneration) -> Mount:
    return Mount(SERVICE, lambda server: add_GenerationServiceServicer_to_server(servicer, server))


def _asked(request: pb.GenerateRequest) -> str:
    return request.messages.messages[-1].content if request.messages.messages else request.prompt


def _finish_reason(request: pb.GenerateRequest) -> pb.FinishReason.ValueType:
    return pb.FINISH_REASON_ERROR if _asked(request) == "broken" else pb.FINISH_REASON_LENGTH


def _choice(request: pb.GenerateRequest, index: int, finish_reason: pb.FinishReason.ValueType) -> pb.Choice:
    text = "one \x1b[31mtwo"
    return pb.Choice(
        index=index,
        text=text,
        token_ids=[1, 2, 3],
        finish_reason=finish_reason,
        receipt=_receipt(request, index, finish_reason, [1, 2, 3], text),
        metrics=METRICS,
        logprobs=_logprobs(request),
    )


def _logprobs(request: pb.GenerateRequest) -> list[sampling_pb2.PositionLogprobs]:
    """One position, if the request asks for logprobs; among the others a part of a character and a special token."""
    chosen = sampling_pb2.TokenLogprob(token_id=1, text="one ", logprob=-0.25)
    other = sampling_pb2.TokenLogprob(token_id=9, text="uno", logprob=-1.5)
    part = sampling_pb2.TokenLogprob(token_id=10, text="\ufffd", logprob=-2.0, token_bytes=b"\xf0\x9f")
    special = sampling_pb2.TokenLogprob(token_id=2, text="<end>", logprob=-3.0, special=True)
    position = sampling_pb2.PositionLogprobs(chosen=chosen, top=[other, part, special])
    return [position] if request.sampling.HasField("logprobs") else []


def _usage() -> pb.Usage:
    return pb.Usage(prompt_tokens=2, completion_tokens=3, total_tokens=5)


def _resolved(request: pb.GenerateRequest) -> pb.Resolved:
    return pb.Resolved(
        request_id=request.request_id or "request-0", method=_served_for(_method(request)),
        requested_method=_method(request), base_cid=BASE, profile_cid=PROFILE, tokenizer_cid=_TOKENIZER,
        sampling=request.sampling, prompt_token_ids=_PROMPT, prompt_salt=_SALT,
    )  # fmt: skip


def _method(request: pb.GenerateRequest) -> str:
    return request.spec_decode.method or "auto"


def _served_for(requested: str) -> str:
    return "lookahead" if requested == "auto" else requested


def _spec_decode(requested: str, tokens: int) -> SpecDecode:
    """All tokens in one pass, or with speculation off one by one."""
    method = _served_for(requested)
    accepted = max(tokens - 1, 0) if method != "off" else 0
    passes = tokens - accepted
    return SpecDecode(
        method=method,
        requested_method=requested,
        tokens_proposed=accepted,
        tokens_accepted=accepted,
        target_passes=passes,
        acceptance_rate=1.0 if accepted else None,
        mean_acceptance_length=tokens / passes if passes else None,
    )


def _receipt(
    request: pb.GenerateRequest, index: int, reason: pb.FinishReason.ValueType, token_ids: list[int], text: str
) -> pb.Receipt:
    """A receipt that is about this request and this answer."""
    sent, domain = request.prompt, PROMPT_TEXT_DOMAIN
    if request.HasField("messages"):
        turns = [{"role": turn.role, "content": turn.content} for turn in request.messages.messages]
        sent, domain = canonical(turns).decode(), MESSAGES_DOMAIN
    plain = receipt(0)
    document = replace(
        plain,
        request_id=request.request_id or "request-0",
        tenant=request.tenant or "default",
        nonce=request.nonce or None,
        sampling=receipt_sampling(read_sampling(request.sampling, 128), request.sampling.n or 1, index, _SALT),
        prompt=PromptPart(len(_PROMPT), commit(PROMPT_DOMAIN, _SALT, _PROMPT), commit_text(domain, _SALT, sent)),
        output=replace(
            plain.output,
            tokens=len(token_ids),
            commitment=commit(OUTPUT_DOMAIN, _SALT, token_ids),
            text_commitment=commit_text(OUTPUT_TEXT_DOMAIN, _SALT, text),
            finish_reason=pb.FinishReason.Name(reason).removeprefix("FINISH_REASON_").lower(),
        ),
        spec_decode=_spec_decode(_method(request), len(token_ids)),
    )
    envelope = sign_document(document, KEYS["receipts"]).to_bytes()
    return pb.Receipt(envelope=envelope, receipt_id=document.receipt_id, ledger_index=7, output_salt=_SALT)

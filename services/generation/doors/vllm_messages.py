"""Messages of `vllm.grpc.engine` (smg-grpc-proto) from and to those of GenerationService."""

from __future__ import annotations

from collections.abc import Sequence

from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import sampling_pb2
from services.runtime.errors import InvalidArgument

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
    """Of a choice that somebody has ended."""
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

"""Converts messages to the values of `services.client.completion`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from google.protobuf.message import Message as ProtoMessage

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import sampling_pb2, speculation_pb2
from services.client import completion as values
from services.client.errors import Internal
from services.client.structured_outputs_wire import structured_outputs_value


def completion(message: pb.GenerateResponse, promise: bytes | None = None) -> values.Completion:
    """`promise` came before it. Raises Internal for a response without choices."""
    if not message.choices:
        raise Internal("the server answered without a choice")
    resolved = _resolved(message.resolved)
    return values.Completion(
        choices=tuple(_choice(each, resolved) for each in message.choices),
        usage=_usage(message.usage),
        metrics=_metrics(message.metrics),
        resolved=resolved,
        promise=promise,
    )


class StreamReader:
    """Converts the events of one stream; keeps tokens and text of a choice until its receipt comes."""

    def __init__(self) -> None:
        self.resolved: values.Resolved | None = None
        self._tokens: dict[int, list[int]] = defaultdict(list)
        self._text: dict[int, list[str]] = defaultdict(list)

    def event(self, message: pb.GenerateStreamResponse) -> values.Event:
        """Raises Internal for an event that this client does not know, or out of order."""
        kind = message.WhichOneof("event")
        if kind == "started":
            self.resolved = _resolved(message.started.resolved)
            return values.Started(self.resolved, message.started.promise or None)
        if kind == "chunk":
            chunk = message.chunk
            self._tokens[chunk.index] += chunk.token_ids
            self._text[chunk.index].append(chunk.text)
            return values.Chunk(chunk.index, chunk.text, tuple(chunk.token_ids), _logprobs(chunk.logprobs))
        if kind != "finished" or self.resolved is None:
            raise Internal("the stream holds an event that this client does not know; update the client")
        return self._finished(message.finished, self.resolved)

    def _finished(self, message: pb.Finished, resolved: values.Resolved) -> values.Finished:
        token_ids, text = self._tokens.pop(message.index, []), "".join(self._text.pop(message.index, []))
        return values.Finished(
            index=message.index,
            finish_reason=_finish_reason(message.finish_reason),
            stop_reason=_stop_reason(message),
            usage=_usage(message.usage),
            metrics=_metrics(message.metrics),
            receipt=_receipt(message, resolved, token_ids, text),
        )


def replayed(message: pb.ReplayResponse) -> values.Replayed:
    return values.Replayed(
        token_ids=tuple(message.token_ids),
        finish_reason=_finish_reason(message.finish_reason),
        stream_digest=message.stream_digest,
        profile_cid=message.profile_cid,
        decode_seconds=message.decode_seconds,
        margins=tuple(message.margins),
    )


def model_info(message: pb.GetModelInfoResponse) -> values.ModelInfo:
    return values.ModelInfo(
        model=message.model,
        base_cid=message.base_cid,
        tokenizer_cid=message.tokenizer_cid,
        profile_cid=message.profile_cid,
        profile=json.loads(message.profile_json or b"{}"),
        probe_passed=message.probe_passed,
        architecture=message.architecture,
        vocab_size=message.vocab_size,
        context_length=message.context_length,
        methods=tuple(message.methods),
        halted_scopes=tuple(
            values.HaltedScope(scope.base_cid, scope.method, _optional(scope, "head_cid"))
            for scope in message.halted_scopes
        ),
        halt_epoch=message.halt_epoch,
        adapters={adapter.name: adapter.adapter_cid for adapter in message.adapters},
        heads=tuple(
            values.LoadedHead(
                head.head_cid, _optional(head, "name"), _optional(head, "publication_index"), head.withdrawn
            )
            for head in message.heads
        ),
        draft_methods=tuple(_draft_method(method) for method in message.draft_methods),
    )


def _draft_method(message: pb.DraftMethod) -> values.DraftMethod:
    parameters = (values.Parameter(each.name, each.meaning, each.least, each.most) for each in message.parameters)
    return values.DraftMethod(message.name, message.meaning, tuple(parameters))


def tokens(message: pb.TokenizeResponse) -> values.Tokens:
    return values.Tokens(tuple(message.token_ids), message.context_length)


def load(message: pb.GetLoadResponse) -> values.Load:
    return values.Load(
        running=message.running,
        waiting=message.waiting,
        blocks_used=message.blocks_used,
        blocks_total=message.blocks_total,
        outbox_pending=message.outbox_pending,
        uptime_seconds=message.uptime.ToNanoseconds() / 1e9,
    )


def _choice(message: pb.Choice, resolved: values.Resolved) -> values.Choice:
    return values.Choice(
        index=message.index,
        text=message.text,
        token_ids=tuple(message.token_ids),
        finish_reason=_finish_reason(message.finish_reason),
        stop_reason=_stop_reason(message),
        logprobs=_logprobs(message.logprobs),
        receipt=_receipt(message, resolved, message.token_ids, message.text),
        metrics=_metrics(message.metrics),
    )


def _receipt(
    message: pb.Choice | pb.Finished, resolved: values.Resolved, token_ids: Iterable[int], text: str
) -> values.Receipt | None:
    if not message.HasField("receipt"):
        return None
    from ledger.documents.content import Content

    receipt, constraint = message.receipt, resolved.sampling.get("structured_outputs")
    return values.Receipt(
        envelope=receipt.envelope,
        receipt_id=receipt.receipt_id,
        ledger_index=_optional(receipt, "ledger_index"),
        pending=receipt.pending,
        content=Content(
            resolved.prompt_salt,
            resolved.prompt_token_ids,
            receipt.output_salt,
            tuple(token_ids),
            None if constraint is None else constraint.text,
        ),
        text=text,
    )


def _resolved(message: pb.Resolved) -> values.Resolved:
    return values.Resolved(
        request_id=message.request_id,
        base_cid=message.base_cid,
        tokenizer_cid=message.tokenizer_cid,
        profile_cid=message.profile_cid,
        profile_proven=_optional(message, "profile_proven"),
        adapter_cid=_optional(message, "adapter_cid"),
        sampling=_sampling(message.sampling),
        requested_method=message.requested_method,
        method=message.method,
        fallback_reason=_optional(message, "fallback_reason"),
        head_cid=_optional(message, "head_cid"),
        k=_optional(message, "k"),
        halt_epoch=message.halt_epoch,
        prompt_tokens=message.prompt_tokens,
        prompt_token_ids=tuple(message.prompt_token_ids),
        prompt_salt=message.prompt_salt,
    )


def _sampling(message: sampling_pb2.SamplingParams) -> dict[str, Any]:
    """Plain Python values by field name, of the fields that are set."""
    plain: dict[str, Any] = {}
    for descriptor, value in message.ListFields():
        if descriptor.name == "logit_bias":
            plain[descriptor.name] = dict(message.logit_bias)
        elif descriptor.name == "structured_outputs":
            plain[descriptor.name] = structured_outputs_value(message.structured_outputs)
        else:
            plain[descriptor.name] = list(value) if descriptor.name in ("stop", "stop_token_ids") else value
    return plain


def _metrics(message: speculation_pb2.SpeculationMetrics) -> values.Metrics:
    return values.Metrics(
        num_drafts=message.num_drafts,
        num_draft_tokens=message.num_draft_tokens,
        num_accepted_tokens=message.num_accepted_tokens,
        acceptance_rate=message.acceptance_rate,
        mean_acceptance_length=message.mean_acceptance_length,
        num_accepted_tokens_per_pos=tuple(message.num_accepted_tokens_per_pos),
        target_passes=message.target_passes,
        first_token_seconds=message.first_token_seconds,
        decode_seconds=message.decode_seconds,
        wall_clock_speedup=_optional(message, "wall_clock_speedup"),
        speedup_basis=message.speedup_basis,
        method=message.method,
        requested_method=message.requested_method,
        fallback_reason=_optional(message, "fallback_reason"),
        passes_by_method=dict(message.passes_by_method),
    )


def _usage(message: pb.Usage) -> values.Usage:
    return values.Usage(
        message.prompt_tokens,
        message.completion_tokens,
        message.cached_prompt_tokens,
        message.accepted_prediction_tokens,
        message.rejected_prediction_tokens,
    )


def _logprobs(messages: Iterable[sampling_pb2.PositionLogprobs]) -> tuple[values.PositionLogprobs, ...]:
    return tuple(
        values.PositionLogprobs(_logprob(each.chosen), tuple(_logprob(other) for other in each.top))
        for each in messages
    )


def _logprob(message: sampling_pb2.TokenLogprob) -> values.TokenLogprob:
    return values.TokenLogprob(message.token_id, message.text, message.logprob)


def _finish_reason(value: pb.FinishReason.ValueType) -> str:
    """stop, length, cancelled or error, as in the receipt."""
    return pb.FinishReason.Name(value).removeprefix("FINISH_REASON_").lower()


def _stop_reason(message: pb.Choice | pb.Finished) -> str | int | None:
    kind = message.WhichOneof("stop_reason")
    return None if kind is None else getattr(message, kind)


def _optional(message: ProtoMessage, name: str) -> Any:
    """The value of an `optional` field, None if it is absent."""
    return getattr(message, name) if message.HasField(name) else None

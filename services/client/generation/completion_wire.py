"""Converts messages to the values of `generation.completion` and `generation.model_info`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import sampling_pb2
from services.client.errors import Internal
from services.client.generation import completion as values
from services.client.generation import model_info as model
from services.client.generation.structured_outputs_wire import structured_outputs_value
from services.client.generation.tools import ToolCallSyntax
from services.client.plain_value import optional, plain_value


def completion(message: pb.GenerateResponse, promise: bytes | None = None) -> values.Completion:
    """`promise` came before it. Raises Internal for a response without choices."""
    if not message.choices:
        raise Internal("the server answered without a choice")
    resolved = _resolved(message.resolved)
    return values.Completion(
        choices=tuple(_choice(each, resolved) for each in message.choices),
        usage=plain_value(values.Usage, message.usage),
        metrics=plain_value(values.Metrics, message.metrics),
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
            usage=plain_value(values.Usage, message.usage),
            metrics=plain_value(values.Metrics, message.metrics),
            receipt=_receipt(message, resolved, token_ids, text),
        )


def replayed(message: pb.ReplayResponse) -> values.Replayed:
    return plain_value(values.Replayed, message, finish_reason=_finish_reason(message.finish_reason))


def model_info(message: pb.GetModelInfoResponse) -> model.ModelInfo:
    return plain_value(
        model.ModelInfo,
        message,
        profile=json.loads(message.profile_json or b"{}"),
        halted_scopes=tuple(plain_value(model.HaltedScope, scope) for scope in message.halted_scopes),
        adapters={adapter.name: adapter.adapter_cid for adapter in message.adapters},
        heads=tuple(plain_value(model.LoadedHead, head) for head in message.heads),
        draft_methods=tuple(map(_draft_method, message.draft_methods)),
    )


def _draft_method(message: pb.DraftMethod) -> model.DraftMethod:
    parameters = tuple(plain_value(model.Parameter, each) for each in message.parameters)
    return plain_value(model.DraftMethod, message, parameters=parameters)


def tokens(message: pb.TokenizeResponse) -> values.Tokens:
    return plain_value(values.Tokens, message)


def load(message: pb.GetLoadResponse) -> model.Load:
    return plain_value(model.Load, message, uptime_seconds=message.uptime.ToNanoseconds() / 1e9)


def _choice(message: pb.Choice, resolved: values.Resolved) -> values.Choice:
    return plain_value(
        values.Choice,
        message,
        finish_reason=_finish_reason(message.finish_reason),
        stop_reason=_stop_reason(message),
        logprobs=_logprobs(message.logprobs),
        receipt=_receipt(message, resolved, message.token_ids, message.text),
        metrics=plain_value(values.Metrics, message.metrics),
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
        ledger_index=optional(receipt, "ledger_index"),
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
    calls = message.tool_call_syntax if message.HasField("tool_call_syntax") else None
    return plain_value(
        values.Resolved,
        message,
        sampling=_sampling(message.sampling),
        tool_calls=None if calls is None else plain_value(ToolCallSyntax, calls),
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

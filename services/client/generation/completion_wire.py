"""Answers of a generation server: converted, collected from a stream, and checked with their promise and receipts."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import sampling_pb2
from services.client.channel import plain_value
from services.client.errors import Internal
from services.client.generation import completion as values
from services.client.generation.completion import (
    Choice,
    Chunk,
    Completion,
    Event,
    Finished,
    Metrics,
    PositionLogprobs,
    Started,
    Usage,
)
from services.client.generation.output_reader import with_calls
from services.client.generation.request import Request, SpecDecodeConfig, ThoughtSyntax, ToolCallSyntax
from services.client.generation.request_wire import structured_outputs_value

_PROMISE_KEY = "kolm-promise-bin"
_FINISH_REASONS = {
    number: name.removeprefix("FINISH_REASON_").lower() for name, number in pb.FinishReason.items() if number
}


def completion(message: pb.GenerateResponse, promise: bytes | None = None) -> Completion:
    """`promise` came before it. Raises Internal for a response without choices."""
    if not message.choices:
        raise Internal("the server answered without a choice")
    resolved = _resolved(message.resolved)
    choices = tuple(_choice(each, resolved) for each in message.choices)
    return plain_value(Completion, message, choices=choices, resolved=resolved, promise=promise)


class StreamReader:
    """Converts the events of one stream; keeps tokens and text of a choice until its receipt comes."""

    def __init__(self) -> None:
        self.resolved: values.Resolved | None = None
        self._tokens: dict[int, list[int]] = defaultdict(list)
        self._text: dict[int, list[str]] = defaultdict(list)

    def event(self, message: pb.GenerateStreamResponse) -> Event:
        """Raises Internal for an event that this client does not know, or out of order."""
        kind = message.WhichOneof("event")
        if kind == "started":
            self.resolved = _resolved(message.started.resolved)
            return Started(self.resolved, message.started.promise or None, tuple(message.started.receipt_ids))
        if kind == "chunk":
            chunk = _chunk(message.chunk)
            self._tokens[chunk.index] += chunk.token_ids
            self._text[chunk.index].append(chunk.text)
            return chunk
        if kind != "finished" or self.resolved is None:
            raise Internal("the stream holds an event that this client does not know; update the client")
        return self._finished(message.finished, self.resolved)

    def _finished(self, message: pb.Finished, resolved: values.Resolved) -> Finished:
        token_ids, text = self._tokens.pop(message.index, []), "".join(self._text.pop(message.index, []))
        return plain_value(Finished, message, **_ending(message), receipt=_receipt(message, resolved, token_ids, text))


def _chunk(message: pb.Chunk) -> Chunk:
    """Equal to the result of `plain_value`, in a quarter of its time, for it is called for each token."""
    logprobs = tuple(plain_value(PositionLogprobs, each) for each in message.logprobs)
    return Chunk(message.index, message.text, tuple(message.token_ids), logprobs)


def model_info(message: pb.GetModelInfoResponse) -> values.ModelInfo:
    adapters = {adapter.name: adapter.adapter_cid for adapter in message.adapters}
    try:
        profile = json.loads(message.profile_json or b"{}")
    except (ValueError, RecursionError):
        profile = None
    if not isinstance(profile, dict):
        raise Internal("the server's profile is not a JSON object; is it a kolm server?")
    return plain_value(values.ModelInfo, message, profile=profile, adapters=adapters)


def load(message: pb.GetLoadResponse) -> values.Load:
    return plain_value(values.Load, message, uptime_seconds=message.uptime.ToNanoseconds() / 1e9)


def _choice(message: pb.Choice, resolved: values.Resolved) -> Choice:
    receipt = _receipt(message, resolved, message.token_ids, message.text)
    return plain_value(Choice, message, **_ending(message), receipt=receipt)


def _ending(message: pb.Choice | pb.Finished) -> dict[str, Any]:
    """Why an output has ended: stop, length, cancelled or error, as in the receipt; and the match."""
    kind = message.WhichOneof("stop_reason")
    reason = message.finish_reason
    if reason not in _FINISH_REASONS:
        raise Internal(f"the answer ended with a reason that this client does not know ({reason}); update the client")
    return {"finish_reason": _FINISH_REASONS[reason], "stop_reason": None if kind is None else getattr(message, kind)}


def _receipt(
    message: pb.Choice | pb.Finished, resolved: values.Resolved, token_ids: Iterable[int], text: str
) -> values.Receipt | None:
    if not message.HasField("receipt"):
        return None
    from ledger.documents.content import Content

    receipt, constraint = message.receipt, resolved.sampling.get("structured_outputs")
    constraint_text = None if constraint is None else constraint.text
    prompt = resolved.prompt_salt, resolved.prompt_token_ids
    content = Content(*prompt, receipt.output_salt, tuple(token_ids), constraint_text)
    return plain_value(values.Receipt, receipt, content=content, text=text)


def _resolved(message: pb.Resolved) -> values.Resolved:
    calls = plain_value(ToolCallSyntax, message.tool_call_syntax) if message.HasField("tool_call_syntax") else None
    thoughts = plain_value(ThoughtSyntax, message.thought_syntax) if message.HasField("thought_syntax") else None
    sampling = _sampling(message.sampling)
    return plain_value(values.Resolved, message, sampling=sampling, tool_calls=calls, thoughts=thoughts)


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


class Collection:
    """One stream of `choices` so far. `on_promise` gets the promise once the stream has begun; it may raise."""

    def __init__(self, choices: int, on_promise: Callable[[bytes | None], None]) -> None:
        self._choices, self._on_promise = choices, on_promise
        self._started: Started | None = None
        self._chunks: defaultdict[int, list[Chunk]] = defaultdict(list)
        self._finished: dict[int, Finished] = {}

    def add(self, event: Event) -> None:
        match event:
            case Started():
                self._started = event
                self._on_promise(event.promise)
            case Chunk():
                self._chunks[event.index].append(event)
            case Finished():
                self._finished[event.index] = event

    def completion(self) -> Completion:
        """Raises Internal if the stream ended early."""
        started, finished = self._started, self._finished
        if started is None or finished.keys() != set(range(self._choices)):
            raise Internal(f"the stream ended with {len(finished)} of {self._choices} choices")
        ordered = [finished[index] for index in range(self._choices)]
        return Completion(
            choices=tuple(_collected(each, self._chunks[each.index]) for each in ordered),
            usage=usage_of([each.usage for each in ordered]),
            metrics=metrics_of([each.metrics for each in ordered]),
            resolved=started.resolved,
            promise=started.promise,
        )


def _collected(finished: Finished, chunks: Sequence[Chunk]) -> Choice:
    return Choice(
        index=finished.index,
        text="".join(chunk.text for chunk in chunks),
        token_ids=tuple(chain.from_iterable(chunk.token_ids for chunk in chunks)),
        finish_reason=finished.finish_reason,
        stop_reason=finished.stop_reason,
        logprobs=tuple(chain.from_iterable(chunk.logprobs for chunk in chunks)),
        receipt=finished.receipt,
        metrics=finished.metrics,
    )


def usage_of(parts: Sequence[Usage]) -> Usage:
    return Usage(
        prompt_tokens=parts[0].prompt_tokens,
        completion_tokens=sum(part.completion_tokens for part in parts),
        cached_prompt_tokens=min(part.cached_prompt_tokens for part in parts),
        accepted_prediction_tokens=sum(part.accepted_prediction_tokens for part in parts),
        rejected_prediction_tokens=sum(part.rejected_prediction_tokens for part in parts),
    )


def metrics_of(parts: Sequence[Metrics]) -> Metrics:
    """Metrics of all choices: sums of counts, and the longest times, for choices run in parallel; a speedup only for
    one choice.
    """
    first, alone = parts[0], len(parts) == 1
    drafted, accepted = sum(part.num_draft_tokens for part in parts), sum(part.num_accepted_tokens for part in parts)
    passes = sum(part.target_passes for part in parts)
    tokens = sum(part.mean_acceptance_length * part.target_passes for part in parts)
    return Metrics(
        num_drafts=sum(part.num_drafts for part in parts),
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        acceptance_rate=accepted / drafted if drafted else 0.0,
        mean_acceptance_length=tokens / passes if passes else 0.0,
        num_accepted_tokens_per_pos=tuple(
            map(sum, zip_longest(*(part.num_accepted_tokens_per_pos for part in parts), fillvalue=0))
        ),
        target_passes=passes,
        first_token_seconds=max(part.first_token_seconds for part in parts),
        decode_seconds=max(part.decode_seconds for part in parts),
        wall_clock_speedup=first.wall_clock_speedup if alone else None,
        speedup_basis=first.speedup_basis if alone else "",
        method=first.method,
        requested_method=first.requested_method,
        fallback_reason=first.fallback_reason,
        passes_by_method=dict(sum((Counter(part.passes_by_method) for part in parts), Counter())),
    )


def checked_completion(
    answer: pb.GenerateResponse,
    metadata: Mapping[str, str | bytes],
    request: Request,
    spec_decode: SpecDecodeConfig | None,
) -> Completion:
    """The answer of a unary call; `metadata` comes first and has the promise. Raises ReceiptMismatch, Internal."""
    from services.client.generation.answer_check import check_promise, check_receipt  # with readers of signed documents

    promise = metadata.get(_PROMISE_KEY)
    answered = completion(answer, promise if isinstance(promise, bytes) else None)
    if answered.promise is not None:
        check_promise(answered.promise, request, answered.resolved)
    for each in answered.choices:
        if each.receipt is not None:
            check_receipt(each.receipt, request, spec_decode, answered.resolved, each.index, each.finish_reason)
    return with_calls(answered, request)


def checked_events(
    request: Request, spec_decode: SpecDecodeConfig | None
) -> Callable[[pb.GenerateStreamResponse], Event]:
    """Converts the events of one stream, in their order. Raises ReceiptMismatch, Internal."""
    from services.client.generation.answer_check import check_promise, check_receipt  # while the server works

    reader = StreamReader()

    def event(message: pb.GenerateStreamResponse) -> Event:
        found = reader.event(message)
        if isinstance(found, Started) and found.promise is not None:
            check_promise(found.promise, request, found.resolved)
        if isinstance(found, Finished) and found.receipt is not None and reader.resolved is not None:
            check_receipt(found.receipt, request, spec_decode, reader.resolved, found.index, found.finish_reason)
        return found

    return event

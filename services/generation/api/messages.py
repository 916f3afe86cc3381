"""Protobuf messages for the results of generation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import NamedTuple

from google.protobuf.duration_pb2 import Duration

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import sampling_pb2, speculation_pb2
from ledger.documents.halt import Scope
from ledger.encoding.canonical import canonical
from services.generation.api.runner import Completed
from services.generation.drafting.method_spec import MethodSpec
from services.generation.engine.events import Chunk, Load, Outcome, SpeculationMetrics, TokenLogprobs
from services.generation.engine.text.tokenizer import TextCodec
from services.generation.receipts.issuer import SignedPromise, Speedup
from services.generation.requests.parameters import sampling_message
from services.generation.requests.policy import Decision
from services.generation.requests.resolution import Identity, Resolved
from services.generation.requests.served_heads import HeadState

_UNKNOWN = "\N{REPLACEMENT CHARACTER}"


class Spelled(NamedTuple):
    """A token in log-probabilities. `token_bytes`: its bytes, if known, of a part of a character."""

    text: str
    special: bool
    token_bytes: bytes


Spell = Callable[[int], Spelled]


def response_message(
    resolved: Resolved,
    completed: Sequence[Completed],
    logprobs: Sequence[Sequence[TokenLogprobs]],
    identity: Identity,
    spell: Spell,
) -> pb.GenerateResponse:
    """`completed` by choice, with each choice's logprobs."""
    outcomes = [each.outcome for each in completed]
    speedup = completed[0].checked.speedup if len(completed) == 1 else None
    return pb.GenerateResponse(
        choices=[
            _choice(each, positions, resolved.decision, spell)
            for each, positions in zip(completed, logprobs, strict=True)
        ],
        usage=_usage(resolved, outcomes),
        metrics=_metrics([each.metrics for each in outcomes], resolved.decision, speedup),
        resolved=resolved_message(resolved, identity),
    )


def started_event(resolved: Resolved, identity: Identity, promise: SignedPromise) -> pb.GenerateStreamResponse:
    ids = [each.receipt_id for each in promise.unfinished]
    started = pb.Started(resolved=resolved_message(resolved, identity), promise=promise.envelope, receipt_ids=ids)
    return pb.GenerateStreamResponse(started=started)


def chunk_event(chunk: Chunk, spell: Spell) -> pb.GenerateStreamResponse:
    logprobs = _logprobs(chunk.logprobs, spell)
    message = pb.Chunk(index=chunk.choice, text=chunk.text, token_ids=chunk.token_ids, logprobs=logprobs)
    return pb.GenerateStreamResponse(chunk=message)


def finished_event(resolved: Resolved, completed: Completed) -> pb.GenerateStreamResponse:
    outcome = completed.outcome
    finished = pb.Finished(
        index=completed.choice,
        finish_reason=_finish_reason(outcome),
        usage=_usage(resolved, [outcome]),
        metrics=_metrics([outcome.metrics], resolved.decision, completed.checked.speedup),
        receipt=_receipt(completed),
    )
    _set_stop_reason(finished, outcome)
    return pb.GenerateStreamResponse(finished=finished)


def resolved_message(resolved: Resolved, identity: Identity) -> pb.Resolved:
    decision = resolved.decision
    return pb.Resolved(
        request_id=resolved.request_id,
        model=identity.name,
        base_cid=identity.base_cid,
        tokenizer_cid=identity.tokenizer_cid,
        profile_cid=resolved.profile_cid,
        profile_proven=identity.probe_passed if identity.engine is None else None,
        adapter_cid=resolved.adapter_cid,
        sampling=sampling_message(resolved.sampling, resolved.choices),
        requested_method=decision.requested_method,
        method=decision.method,
        fallback_reason=decision.fallback_reason,
        head_cid=decision.head_cid,
        k=decision.k,
        halt_epoch=resolved.halt_epoch,
        prompt_tokens=len(resolved.prompt),
        prompt_token_ids=resolved.prompt,
        prompt_salt=resolved.prompt_salt,
        tool_call_syntax=None if resolved.tool_calls is None else pb.ToolCallSyntax(**asdict(resolved.tool_calls)),
        thought_syntax=None if resolved.thoughts is None else pb.ThoughtSyntax(**asdict(resolved.thoughts)),
    )


def model_info_message(
    identity: Identity, scopes: Iterable[Scope], halt_epoch: int, heads: HeadState
) -> pb.GetModelInfoResponse:
    return pb.GetModelInfoResponse(
        model=identity.name,
        base_cid=identity.base_cid,
        tokenizer_cid=identity.tokenizer_cid,
        profile_cid=identity.profile_cid,
        profile_json=canonical(identity.profile),
        probe_passed=identity.probe_passed,
        engine=identity.engine,
        architecture=identity.architecture,
        vocab_size=identity.vocab_size,
        context_length=identity.context_length,
        methods=identity.methods,
        halted_scopes=[pb.HaltedScope(**scope.to_document()) for scope in scopes],
        halt_epoch=halt_epoch,
        adapters=[pb.Adapter(name=each.name, adapter_cid=each.cid) for each in identity.adapters],
        heads=[
            pb.Head(
                head_cid=each.cid, name=each.name, publication_index=each.publication_index,
                withdrawn=each.cid in heads.withdrawn,
            )
            for each in heads.served
        ],
        draft_methods=[_draft_method(spec) for spec in identity.methods_known if spec.name in identity.methods],
    )  # fmt: skip


def _draft_method(spec: MethodSpec) -> pb.DraftMethod:
    parameters = [pb.Parameter(**asdict(each)) for each in spec.parameters]
    return pb.DraftMethod(name=spec.name, meaning=spec.meaning, parameters=parameters)


def load_message(load: Load, outbox_pending: int, uptime_seconds: float) -> pb.GetLoadResponse:
    uptime = Duration()
    uptime.FromNanoseconds(round(uptime_seconds * 1e9))
    return pb.GetLoadResponse(
        running=load.running, waiting=load.waiting, blocks_used=load.blocks_used, blocks_total=load.blocks_total,
        outbox_pending=outbox_pending, uptime=uptime,
    )  # fmt: skip


def _choice(completed: Completed, positions: Sequence[TokenLogprobs], decision: Decision, spell: Spell) -> pb.Choice:
    outcome = completed.outcome
    choice = pb.Choice(
        index=completed.choice,
        text=outcome.text,
        token_ids=outcome.token_ids,
        finish_reason=_finish_reason(outcome),
        logprobs=_logprobs(positions, spell),
        receipt=_receipt(completed),
        metrics=_metrics([outcome.metrics], decision, completed.checked.speedup),
    )
    _set_stop_reason(choice, outcome)
    return choice


def _finish_reason(outcome: Outcome) -> pb.FinishReason.ValueType:
    return pb.FinishReason.Value(f"FINISH_REASON_{outcome.finish_reason.upper()}")


def _set_stop_reason(message: pb.Choice | pb.Finished, outcome: Outcome) -> None:
    if isinstance(outcome.stop_reason, str):
        message.stop_string = outcome.stop_reason
    elif outcome.stop_reason is not None:
        message.stop_token_id = outcome.stop_reason


def _receipt(completed: Completed) -> pb.Receipt:
    return pb.Receipt(
        envelope=completed.receipt.envelope,
        receipt_id=completed.receipt.receipt_id,
        ledger_index=completed.ledger_index,
        pending=completed.ledger_index is None,
        output_salt=completed.receipt.content.output_salt,
    )


def _usage(resolved: Resolved, outcomes: Sequence[Outcome]) -> pb.Usage:
    prompt, output = len(resolved.prompt), sum(len(outcome.token_ids) for outcome in outcomes)
    return pb.Usage(
        prompt_tokens=prompt,
        completion_tokens=output,
        total_tokens=prompt + output,
        cached_prompt_tokens=min((outcome.metrics.cached_prompt_tokens for outcome in outcomes), default=0),
        accepted_prediction_tokens=sum(outcome.metrics.accepted_prediction_tokens for outcome in outcomes),
        rejected_prediction_tokens=sum(outcome.metrics.rejected_prediction_tokens for outcome in outcomes),
    )


def _metrics(
    parts: Sequence[SpeculationMetrics], decision: Decision, speedup: Speedup | None
) -> speculation_pb2.SpeculationMetrics:
    """Metrics of all choices: counts are sums, times are of the slowest choice, since choices run in parallel."""
    drafted, accepted = sum(part.num_draft_tokens for part in parts), sum(part.num_accepted_tokens for part in parts)
    passes, tokens = sum(part.target_passes for part in parts), sum(part.output_tokens for part in parts)
    return speculation_pb2.SpeculationMetrics(
        num_drafts=sum(part.num_drafts for part in parts),
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        acceptance_rate=accepted / drafted if drafted else 0.0,
        mean_acceptance_length=tokens / passes if passes else 0.0,
        num_accepted_tokens_per_pos=map(
            sum, zip_longest(*(part.num_accepted_tokens_per_pos for part in parts), fillvalue=0)
        ),
        target_passes=passes,
        first_token_seconds=max((part.queue_seconds + part.prefill_seconds for part in parts), default=0.0),
        decode_seconds=max((part.decode_seconds for part in parts), default=0.0),
        wall_clock_speedup=None if speedup is None else speedup.value,
        speedup_basis="" if speedup is None else speedup.basis,
        method=decision.method,
        requested_method=decision.requested_method,
        fallback_reason=decision.fallback_reason,
        passes_by_method=sum((Counter(dict(part.passes_by_method)) for part in parts), Counter()),
    )


def spelled(codec: TextCodec, token_id: int) -> Spelled:
    """The text of a token alone, as log-probabilities show it."""
    known = codec.bytes_of(token_id)
    text = codec.decode([token_id]) if known is None else known.decode("utf-8", "replace")
    name = text or codec.decode_all([token_id])
    return Spelled(name, name != text, (known or b"") if _UNKNOWN in text else b"")


def _logprobs(positions: Iterable[TokenLogprobs], spell: Spell) -> list[sampling_pb2.PositionLogprobs]:
    def token(token_id: int, logprob: float) -> sampling_pb2.TokenLogprob:
        text, special, token_bytes = spell(token_id)
        return sampling_pb2.TokenLogprob(
            token_id=token_id, text=text, logprob=logprob, special=special, token_bytes=token_bytes
        )

    return [
        sampling_pb2.PositionLogprobs(
            chosen=token(position.token_id, position.logprob), top=[token(*pair) for pair in position.top]
        )
        for position in positions
    ]

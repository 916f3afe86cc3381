"""Collects a stream into a completion, as the unary call would have answered."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest

from services.client.errors import Internal
from services.client.generation.completion import Choice, Chunk, Completion, Event, Finished, Metrics, Started, Usage


class Collection:
    """Of one stream of `choices`. `on_promise` gets the promise as soon as the stream has begun; it may raise."""

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
        """Raises Internal where the stream has ended early."""
        started, finished = self._started, self._finished
        if started is None or finished.keys() != set(range(self._choices)):
            raise Internal(f"the stream ended with {len(finished)} of {self._choices} choices")
        ordered = [finished[index] for index in range(self._choices)]
        return Completion(
            choices=tuple(_choice(each, self._chunks[each.index]) for each in ordered),
            usage=usage_of([each.usage for each in ordered]),
            metrics=metrics_of([each.metrics for each in ordered]),
            resolved=started.resolved,
            promise=started.promise,
        )


def _choice(finished: Finished, chunks: Sequence[Chunk]) -> Choice:
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
    """Counts add up; times are those of the longest, for choices run side by side. A speedup is of one choice."""
    first, alone = parts[0], len(parts) == 1
    drafted, accepted = sum(part.num_draft_tokens for part in parts), sum(part.num_accepted_tokens for part in parts)
    passes = sum(part.target_passes for part in parts)
    return Metrics(
        num_drafts=sum(part.num_drafts for part in parts),
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        acceptance_rate=accepted / drafted if drafted else 0.0,
        mean_acceptance_length=_mean_length(parts) if passes else 0.0,
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


def _mean_length(parts: Sequence[Metrics]) -> float:
    tokens = sum(part.mean_acceptance_length * part.target_passes for part in parts)
    return tokens / sum(part.target_passes for part in parts)

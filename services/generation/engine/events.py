"""Events of a sequence while it runs and when it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from ledger.encoding.stream_digest import StreamDigest

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, from the unprocessed logits: of the emitted token, and of the most likely."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Newly released tokens and their text. Text that could still turn into a stop string has not been released."""

    request_id: str
    choice: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class SpeculationMetrics:
    """Counts of one sequence, under vLLM's names; times in seconds."""

    num_drafts: int  # passes that verified at least one draft token
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: tuple[int, ...]
    accepted_prediction_tokens: int  # drafted from what the caller expects
    rejected_prediction_tokens: int
    passes_by_method: tuple[tuple[str, int], ...]  # passes that verified a draft of it; off: those without any draft
    target_passes: int  # passes that emitted at least one token
    prompt_tokens: int
    cached_prompt_tokens: int  # of them, those that another sequence had computed
    output_tokens: int
    queue_seconds: float
    prefill_seconds: float  # from admission to the first token
    decode_seconds: float  # from the first token to the last

    @property
    def acceptance_rate(self) -> float:
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens that a pass emits, the target's own included."""
        return self.output_tokens / self.target_passes if self.target_passes else 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished sequence. `margins` are best minus second best raw logit, per emitted position."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    stop_reason: str | int | None
    stream_digest: str
    margins: tuple[float, ...] = field(repr=False)
    metrics: SpeculationMetrics
    error: str | None = None

    @property
    def min_margin(self) -> float | None:
        return min(self.margins, default=None)


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a sequence."""

    request_id: str
    choice: int
    outcome: Outcome


NOTHING = Outcome(
    token_ids=(),
    text="",
    finish_reason="error",
    stop_reason=None,
    stream_digest=StreamDigest().hexdigest(),
    margins=(),
    metrics=SpeculationMetrics(
        num_drafts=0,
        num_draft_tokens=0,
        num_accepted_tokens=0,
        num_accepted_tokens_per_pos=(),
        accepted_prediction_tokens=0,
        rejected_prediction_tokens=0,
        passes_by_method=(),
        target_passes=0,
        prompt_tokens=0,
        cached_prompt_tokens=0,
        output_tokens=0,
        queue_seconds=0.0,
        prefill_seconds=0.0,
        decode_seconds=0.0,
    ),
)
"""Of a sequence that ended before its first token, for no reason of its own."""

Event = Chunk | Finished
Sink = Callable[[Event], None]
"""Called on the engine's thread; must not block and must not raise."""

"""Events and outcome of a sequence, with their counts and times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ledger.encoding.stream_digest import StreamDigest
from services.generation.engine.tree import TokenTree

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(slots=True)
class Counts:
    """Counts of passes and tokens, of one sequence or of all. Written on the engine's thread; another thread reads each
    count whole, but counts that it reads together may be of different passes.
    """

    passes: int = 0  # that emitted at least one token
    drafts: int = 0
    draft_tokens: int = 0
    predicted_tokens: int = 0  # drafted from the prediction
    accepted_predicted_tokens: int = 0
    accepted_per_depth: list[int] = field(default_factory=list)
    accepted_elsewhere: int = 0  # by an engine that does not report the depth
    by_method: dict[str, int] = field(default_factory=dict)  # passes; off: passes without a draft

    def walked(self, method: str, tree: TokenTree, path: Sequence[int]) -> None:
        """Count a pass that verified a tree of `method` and accepted the nodes of the path."""
        drafted, accepted = len(tree) - 1, len(path) - 1
        self.passes += 1
        ran = method if drafted else "off"
        self.by_method[ran] = self.by_method.get(ran, 0) + 1
        self.drafts += drafted > 0
        self.draft_tokens += drafted
        self.predicted_tokens += len(tree.predicted)
        self.accepted_predicted_tokens += len(tree.predicted.intersection(path))
        self.accepted_per_depth += [0] * (accepted - len(self.accepted_per_depth))
        for depth in range(accepted):
            self.accepted_per_depth[depth] += 1

    @property
    def accepted_tokens(self) -> int:
        return sum(self.accepted_per_depth) + self.accepted_elsewhere

    @property
    def tokens(self) -> int:
        """Emitted tokens: each pass adds a token of the target to the accepted tokens."""
        return self.passes + self.accepted_tokens


@dataclass(frozen=True, slots=True)
class Load:
    """How busy an engine is, as of its last step."""

    running: int
    waiting: int
    blocks_used: int
    blocks_total: int
    preemptions: int  # since the start
    reused_tokens: int  # of prompts, since the start: an earlier request had computed them


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, from the unprocessed logits: of the emitted token, and of the most likely."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Newly released tokens and their text. Text that may become a stop string is not released yet."""

    request_id: str
    choice: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()

    def followed_by(self, later: Chunk) -> Chunk:
        """This chunk and the next one, joined."""
        return replace(
            self,
            token_ids=self.token_ids + later.token_ids,
            text=self.text + later.text,
            logprobs=self.logprobs + later.logprobs,
        )


@dataclass(frozen=True, slots=True)
class SpeculationMetrics:
    """Counts of one sequence, with vLLM's names; times in seconds."""

    num_drafts: int  # passes that verified at least one draft token
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: tuple[int, ...]
    accepted_prediction_tokens: int  # drafted from the prediction
    rejected_prediction_tokens: int
    passes_by_method: tuple[tuple[str, int], ...]  # passes that verified its drafts; off: passes without a draft
    target_passes: int  # passes that emitted at least one token
    prompt_tokens: int
    cached_prompt_tokens: int  # of them, reused from other sequences
    output_tokens: int
    queue_seconds: float
    prefill_seconds: float  # from admission to the first token
    decode_seconds: float  # from the first token to the last
    reported_by: Literal["kolm", "engine", "none"] = "kolm"  # drafts, acceptances and passes
    gains: tuple[tuple[str, float], ...] = ()  # by method, gain in tokens a pass, net of its cost

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
    reached_limit: bool = False  # the error is that of a constraint at a limit, see `GrammarLimit`

    @property
    def min_margin(self) -> float | None:
        return min(self.margins, default=None)


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a sequence."""

    request_id: str
    choice: int
    outcome: Outcome


Event = Chunk | Finished
Sink = Callable[[Event], None]
"""Called on the engine's thread or event loop; must not block and must not raise."""


class Tracker:
    """Counts and times of one sequence. Times are seconds of the engine's monotonic clock."""

    def __init__(self, prompt_tokens: int, now: float, totals: Counts) -> None:
        """`totals`: counts of all sequences."""
        self._prompt_tokens = prompt_tokens
        self._arrived = now
        self._admitted: float | None = None
        self._reused, self._again = 0, False
        self._first_token: float | None = None
        self._last_token = now
        self._counts = Counts()
        self._totals = totals
        self.gains: Mapping[str, float] = {}  # of a pass, by drafter

    def admitted(self, now: float) -> None:
        if self._admitted is None:
            self._admitted = now

    def reused(self, tokens: int) -> None:
        """Count `tokens` of the prompt that were reused; after a preemption they may be its own and do not count."""
        if not self._again:
            self._reused = min(self._reused + tokens, self._prompt_tokens)

    def preempted(self) -> None:
        self._again = True

    def walked(self, method: str, tree: TokenTree, path: Sequence[int], now: float) -> None:
        """Count a pass that verified a tree of `method` and accepted the nodes of the path."""
        self._counts.walked(method, tree, path)
        self._totals.walked(method, tree, path)
        self._first_token = self._first_token or now
        self._last_token = now

    def metrics(self, output_tokens: int, now: float) -> SpeculationMetrics:
        admitted = now if self._admitted is None else self._admitted
        first = admitted if self._first_token is None else self._first_token
        counts = self._counts
        return SpeculationMetrics(
            num_drafts=counts.drafts,
            num_draft_tokens=counts.draft_tokens,
            num_accepted_tokens=counts.accepted_tokens,
            num_accepted_tokens_per_pos=tuple(counts.accepted_per_depth),
            accepted_prediction_tokens=counts.accepted_predicted_tokens,
            rejected_prediction_tokens=counts.predicted_tokens - counts.accepted_predicted_tokens,
            passes_by_method=tuple(sorted(counts.by_method.items())),
            target_passes=counts.passes,
            prompt_tokens=self._prompt_tokens,
            cached_prompt_tokens=self._reused,
            output_tokens=output_tokens,
            queue_seconds=admitted - self._arrived,
            prefill_seconds=first - admitted,
            decode_seconds=max(self._last_token - first, 0.0),
            gains=tuple(sorted((name.partition("/")[0], gain) for name, gain in self.gains.items())),
        )


EMPTY_OUTCOME = Outcome(
    token_ids=(),
    text="",
    finish_reason="error",
    stop_reason=None,
    stream_digest=StreamDigest().hexdigest(),
    margins=(),
    metrics=Tracker(0, 0.0, Counts()).metrics(0, 0.0),
)
"""The outcome of a sequence that was ended before its first token."""

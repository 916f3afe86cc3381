"""Counts and times of one sequence."""

from __future__ import annotations

from collections.abc import Sequence

from services.generation.engine.counts import Counts
from services.generation.engine.events import SpeculationMetrics
from services.generation.engine.tree import TokenTree


class Tracker:
    """Times are seconds of the engine's monotonic clock."""

    def __init__(self, prompt_tokens: int, now: float, totals: Counts) -> None:
        """`totals` counts what all sequences do."""
        self._prompt_tokens = prompt_tokens
        self._arrived = now
        self._admitted: float | None = None
        self._reused, self._again = 0, False
        self._first_token: float | None = None
        self._last_token = now
        self._counts = Counts()
        self._totals = totals

    def admitted(self, now: float) -> None:
        if self._admitted is None:
            self._admitted = now

    def reused(self, tokens: int) -> None:
        """`tokens` of it were computed for others, or, once it was preempted, perhaps by itself: those do not count."""
        if not self._again:
            self._reused = min(self._reused + tokens, self._prompt_tokens)

    def preempted(self) -> None:
        self._again = True

    def walked(self, method: str, tree: TokenTree, path: Sequence[int], now: float) -> None:
        """A pass verified a tree of `method`, and the nodes of the path held."""
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
        )

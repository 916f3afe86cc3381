"""Counts and times of one sequence."""

from __future__ import annotations

from services.generation.engine.events import SpeculationMetrics


class Tracker:
    """Times are seconds of the engine's monotonic clock."""

    def __init__(self, prompt_tokens: int, now: float) -> None:
        self._prompt_tokens = prompt_tokens
        self._arrived = now
        self._admitted: float | None = None
        self._reused, self._again = 0, False
        self._first_token: float | None = None
        self._last_token = now
        self._drafts = 0
        self._draft_tokens = 0
        self._passes = 0
        self._accepted_per_depth: list[int] = []
        self._by_method: dict[str, int] = {}

    def admitted(self, now: float) -> None:
        if self._admitted is None:
            self._admitted = now

    def reused(self, tokens: int) -> None:
        """`tokens` of it were computed for others, or, once it was preempted, perhaps by itself: those do not count."""
        if not self._again:
            self._reused = min(self._reused + tokens, self._prompt_tokens)

    def preempted(self) -> None:
        self._again = True

    def walked(self, method: str, drafted: int, accepted: int, now: float) -> None:
        """A pass verified `drafted` tokens of `method`, and those of the first `accepted` depths held."""
        self._passes += 1
        ran = method if drafted else "off"
        self._by_method[ran] = self._by_method.get(ran, 0) + 1
        self._drafts += drafted > 0
        self._draft_tokens += drafted
        self._accepted_per_depth += [0] * (accepted - len(self._accepted_per_depth))
        for depth in range(accepted):
            self._accepted_per_depth[depth] += 1
        self._first_token = self._first_token or now
        self._last_token = now

    def metrics(self, output_tokens: int, now: float) -> SpeculationMetrics:
        admitted = now if self._admitted is None else self._admitted
        first = admitted if self._first_token is None else self._first_token
        return SpeculationMetrics(
            num_drafts=self._drafts,
            num_draft_tokens=self._draft_tokens,
            num_accepted_tokens=sum(self._accepted_per_depth),
            num_accepted_tokens_per_pos=tuple(self._accepted_per_depth),
            passes_by_method=tuple(sorted(self._by_method.items())),
            target_passes=self._passes,
            prompt_tokens=self._prompt_tokens,
            cached_prompt_tokens=self._reused,
            output_tokens=output_tokens,
            queue_seconds=admitted - self._arrived,
            prefill_seconds=first - admitted,
            decode_seconds=max(self._last_token - first, 0.0),
        )

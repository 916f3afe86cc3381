"""What a request does to the target's logits before its sampler draws, for a head that is to draw alike."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from services.generation.engine.request import EngineRequest, SamplingParams

_NEVER = -1e4  # of a logit: far below whatever a head says


@dataclass(frozen=True, slots=True)
class Adjustment:
    """Of one token's logit: positive ones are divided, negative ones multiplied by `divisor`; then `bias` is added."""

    bias: float = 0.0
    divisor: float = 1.0


class Adjustments:
    """Penalties, biases and the ban on an early end of one request, as `engine.sampler.Sampler` applies them.

    They follow the committed tokens; what a draft itself has said so far is left out.
    """

    def __init__(self, request: EngineRequest, eos_token_ids: tuple[int, ...]) -> None:
        params = request.sampling
        self._params, self._start = params, len(request.prompt)
        self._biases = dict(params.logit_bias)
        self._ends = {*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)}
        self._seen = set(request.prompt) if params.repetition_penalty != 1.0 else set[int]()
        self._counts: Counter[int] = Counter()
        self._counted = self._start
        self._counting = _counts(params)

    def of(self, tokens: list[int]) -> dict[int, Adjustment]:
        """By token, after `tokens`, prompt and output so far; empty for most requests."""
        early = len(tokens) - self._start < self._params.min_tokens
        if not (self._counting or self._biases or early):
            return {}
        if self._counting:
            self._count(tokens)
        named = {*self._biases, *self._seen, *self._counts, *(self._ends if early else ())}
        return {token: self._adjusted(token, early) for token in named}

    def _count(self, tokens: list[int]) -> None:
        said = tokens[self._counted :]
        self._counted = len(tokens)
        self._counts.update(said)
        if self._params.repetition_penalty != 1.0:
            self._seen.update(said)

    def _adjusted(self, token: int, early: bool) -> Adjustment:
        params, count = self._params, self._counts[token]
        bias = self._biases.get(token, 0.0) - params.frequency_penalty * count
        bias -= params.presence_penalty if count else 0.0
        banned = early and token in self._ends
        return Adjustment(_NEVER if banned else bias, params.repetition_penalty if token in self._seen else 1.0)


def _counts(params: SamplingParams) -> bool:
    return bool(params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0)

"""From a row of logits to a token: processors, then position-keyed sampling. A pure function of what the row stands
for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.generation.engine.events import TokenLogprobs
from services.generation.engine.philox import noisy_argmax, two_best
from services.generation.engine.request import SamplingParams

Float32 = NDArray[np.float32]

_NEGLIGIBLE = (
    40.0  # nats below the best from which a token takes no part in top-p's sum: together less than float64 sees
)


class Sampler:
    """Samples one sequence. Knows the tokens so far; everything else of a row comes as arguments.

    `sample` then `append`, token by token: so penalties see exactly the prefix that leads to the row, drafted or not.
    """

    def __init__(
        self, params: SamplingParams, choice: int, prompt: Sequence[int], end_ids: frozenset[int], vocab_size: int
    ) -> None:
        self._params = params
        self._choice = choice
        self._seed = np.uint64(params.seed)
        self._end_ids = np.array(sorted(end_ids), np.int64)
        self._counts: dict[int, int] = {}
        self._seen = set(prompt) if params.repetition_penalty != 1.0 else set()
        self._emitted = 0
        self._bias_ids = np.array([token for token, _ in params.logit_bias], np.int64)
        self._biases = np.array([bias for _, bias in params.logit_bias], np.float32)
        self._plain = (
            params.presence_penalty == 0.0
            and params.frequency_penalty == 0.0
            and params.repetition_penalty == 1.0
            and not params.logit_bias
        )
        self._everything = np.empty(0, np.int64)

    def sample(self, logits: Float32, position: int) -> int:
        """The token at absolute `position`, given the raw logits [vocab_size] of the row before it; -1 if it has none.

        At temperature 0 the largest processed logit, the lowest id among equals; above, the largest processed logit /
        temperature plus Gumbel noise keyed by seed, choice, position and id, over the ids that survive top-k, top-p
        and min-p (DESIGN, leg 2).
        """
        processed = self._processed(logits)
        params = self._params
        best = int(two_best(processed)[0])
        if params.temperature == 0.0 or best < 0:
            return best
        candidates = self._candidates(processed)
        return int(noisy_argmax(processed, candidates, params.temperature, self._seed, self._choice, position))

    def append(self, token: int) -> None:
        """Tell that `token` was emitted."""
        self._emitted += 1
        self._counts[token] = self._counts.get(token, 0) + 1
        if self._params.repetition_penalty != 1.0:
            self._seen.add(token)

    def _processed(self, logits: Float32) -> Float32:
        ends = self._emitted < self._params.min_tokens and len(self._end_ids) > 0
        if self._plain and not ends:
            return logits
        processed = logits.copy()
        self._penalise(processed)
        processed[self._bias_ids] += self._biases
        if ends:
            processed[self._end_ids] = -np.inf
        return processed

    def _penalise(self, logits: Float32) -> None:
        """Repetition penalty over prompt and output (Keskar et al. 2019), then OpenAI's two over the output, in
        place.
        """
        params = self._params
        if params.repetition_penalty != 1.0:
            seen = np.fromiter(self._seen, np.int64, len(self._seen))
            values = logits[seen]
            penalty = np.float32(params.repetition_penalty)
            logits[seen] = np.where(values > 0, values / penalty, values * penalty)
        if (params.presence_penalty or params.frequency_penalty) and self._counts:
            ids = np.fromiter(self._counts.keys(), np.int64, len(self._counts))
            counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
            logits[ids] -= np.float32(params.frequency_penalty) * counts + np.float32(params.presence_penalty)

    def _candidates(self, logits: Float32) -> NDArray[np.int64]:
        """Ids that survive min-p, top-k and top-p, ascending; empty stands for all of them.

        top-p is taken of the distribution that top-k and min-p leave, as vLLM does.
        """
        params = self._params
        if params.top_k == 0 and params.top_p == 1.0 and params.min_p == 0.0:
            return self._everything
        scaled = logits.astype(np.float64) / params.temperature
        reach = _NEGLIGIBLE if params.min_p == 0.0 else min(_NEGLIGIBLE, -math.log(params.min_p))
        ids = np.flatnonzero(scaled >= scaled.max() - reach)
        if params.top_k or params.top_p < 1.0:
            ids = ids[np.argsort(-scaled[ids], kind="stable")]
        if params.top_k:
            ids = ids[: params.top_k]
        if params.top_p < 1.0:
            weights = np.exp(scaled[ids] - scaled[ids[0]])
            before = np.cumsum(weights) - weights
            ids = ids[before < params.top_p * weights.sum()]
        return np.sort(ids)


def logprobs_of(logits: Float32, token: int, count: int) -> TokenLogprobs:
    """Log-softmax of raw logits at `token` and at the `count` most likely ids (lowest id first among equals)."""
    wide = logits.astype(np.float64)
    largest = wide.max()
    normaliser = largest + math.log(float(np.exp(wide - largest).sum()))
    top = np.argsort(-wide, kind="stable")[:count]
    return TokenLogprobs(
        token, float(wide[token] - normaliser), tuple((int(i), float(wide[i] - normaliser)) for i in top)
    )

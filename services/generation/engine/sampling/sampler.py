"""From a row of logits to a token: processors, then position-keyed sampling. A pure function of what the row stands
for; `docs/numerics.md` is its exact program, `sampling_reference` the same in plain Python."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.generation.engine.events import TokenLogprobs
from services.generation.engine.request import SamplingParams
from services.generation.engine.sampling.philox import log64
from services.generation.engine.sampling.processors import LogitsMask, LogitsProcessors
from services.generation.engine.sampling.race import Float32, Row, noisy_argmax
from services.generation.engine.sampling.selection import SCALE, candidates, top, total_weight


class Sampler:
    """Samples one sequence. Knows the tokens so far; everything else of a row comes as arguments.

    `choose` then `accept`, token by token: so penalties see exactly the prefix that leads to the row, drafted or not.
    """

    def __init__(
        self,
        params: SamplingParams,
        choice: int,
        prompt: Sequence[int],
        end_ids: frozenset[int],
        mask: LogitsMask | None = None,
    ) -> None:
        """`mask` comes after the processors that `params` ask for."""
        self._params = params
        self._choice = choice
        self._seed = np.uint64(params.seed)
        self._processors = LogitsProcessors(params, prompt, end_ids)
        self._mask = mask

    def sample(self, logits: Float32, position: int) -> int:
        """The token at absolute `position`, given the raw logits [vocab_size] of the row before it.

        Raises UnusableLogits.
        """
        return self.choose(Row.of(logits), position)

    def choose(self, raw: Row, position: int) -> int:
        """As `sample`, of a row that was looked at already.

        At temperature 0 the largest processed logit, the lowest id among equals; above, the largest processed logit /
        temperature plus Gumbel noise keyed by seed, choice, position and id, over the ids that survive top-k, top-p
        and min-p (docs/numerics.md, Sampling). Raises UnusableLogits.
        """
        logits, mask, params = self._processors.apply(raw.logits), self._mask, self._params
        if mask is not None:
            if params.temperature == 0.0 and logits is raw.logits and mask.allows(raw.token):
                return raw.token  # the first of all ids is the first of the allowed ones too
            logits = logits.copy()
            mask.apply(logits)
        row = raw
        if logits is not raw.logits:
            row = Row.of(logits, "the logits after penalties, biases, min_tokens and grammar")
        if params.temperature == 0.0:
            return row.token
        return int(
            noisy_argmax(
                row.logits, row.token, candidates(row, params), params.temperature, self._seed, self._choice, position
            )
        )

    def accept(self, token: int) -> None:
        """Tell that `token` was emitted."""
        self._processors.accept(token)
        if self._mask is not None:
            self._mask.accept(token)


def logprobs_of(row: Row, token: int, count: int) -> TokenLogprobs:
    """Log-softmax of a row at `token` and at the `count` most likely ids (the lowest id first among equals)."""
    normaliser = log64(float(total_weight(row.logits, row.best, 1.0)) / SCALE)

    def logprob(id: int) -> float:
        return (float(row.logits[id]) - row.best) - normaliser

    likeliest = sorted(top(row, count).tolist(), key=lambda id: (-row.logits[id], id)) if count else []
    return TokenLogprobs(token, logprob(token), tuple((id, logprob(id)) for id in likeliest))

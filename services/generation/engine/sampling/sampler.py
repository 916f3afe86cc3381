"""The choice of a token in a row of logits."""

from __future__ import annotations

from collections.abc import Sequence

from services.generation.engine.events import TokenLogprobs
from services.generation.engine.request import SamplingParams
from services.generation.engine.sampling.draws import Drawn, draw, draw_rows
from services.generation.engine.sampling.filters import LOWEST_KEY, SCALE, top, total_weight
from services.generation.engine.sampling.processors import LogitsMask, LogitsProcessors
from services.generation.engine.sampling.race import Row, log64
from services.generation.target.arrays import Float32


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
        self._processors = LogitsProcessors(params, prompt, end_ids)
        self._mask = mask

    def sample(self, logits: Float32, position: int) -> int:
        """The token at absolute `position`, given the raw logits [vocab_size] of the row before it.

        Raises UnusableLogits.
        """
        return self.choose(draw_rows(logits[None], [0], [self.draw(position)])[0], position)

    def draw(self, position: int) -> bytes:
        """The draw from the raw logits, at temperature 0 if they are to be changed before a token is chosen."""
        changed = self._mask is not None or not self._processors.idle
        return draw(self._params, self._choice, position, greedy=changed)

    def choose(self, drawn: Drawn, position: int) -> int:
        """The token that `sample` chooses, where `draw` was drawn from its row.

        At temperature 0 the largest processed logit, the lowest id among equals; above, the largest processed logit /
        temperature plus Gumbel noise keyed by seed, choice, position and id, over the ids that survive top-k, top-p
        and min-p (docs/numerics.md, Sampling). Raises UnusableLogits.
        """
        row = drawn.row.checked("the target's logits")
        logits, mask, params = self._processors.apply(row.logits), self._mask, self._params
        if mask is not None:
            if params.temperature == 0.0 and logits is row.logits and mask.allows(row.token):
                return row.token  # the first of all ids is the first of the allowed ones too
            logits = logits.copy()
            mask.apply(logits)
        if logits is row.logits:
            return drawn.token
        (processed,) = draw_rows(logits[None], [0], [draw(params, self._choice, position)])
        processed.row.checked("the logits after penalties, biases, min_tokens and grammar")
        return processed.token

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

    likeliest = sorted(top(row, count, LOWEST_KEY).tolist(), key=lambda id: (-row.logits[id], id)) if count else []
    return TokenLogprobs(token, logprob(token), tuple((id, logprob(id)) for id in likeliest))

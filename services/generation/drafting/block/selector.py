"""The selector of a DFlash2 head: the likeliest tokens of a row get a score for following the token before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.generation.drafting.block.block_checkpoint import AFTER, BEFORE, STATE_PROJECTION, BlockHead
from services.generation.drafting.draft_tree.candidates import insert
from services.generation.engine.numba_cache import relaxed
from services.generation.target.arrays import Float32, Int64


@dataclass(frozen=True, slots=True, eq=False)
class Selector:
    """score(p, h, c) = the sum over the rank of before[p] * (projection h) * after[c], of tokens p and c."""

    before: Float32  # [vocabulary, rank]
    after: Float32  # [vocabulary, rank]
    projection: Float32  # [rank, hidden]
    top: int

    @classmethod
    def of(cls, head: BlockHead) -> Selector:
        before, after, projection = (head.tensors[name] for name in (BEFORE, AFTER, STATE_PROJECTION))
        return cls(before, after, projection, head.config.selector_top)

    def scored(self, logits: Float32, states: Float32, tokens: Int64) -> Float32:
        """Logits [n, vocabulary] of the `top` likeliest tokens of each row, with their scores after `tokens` [n];
        minus infinity for all others. `states` [n, hidden].
        """
        return _scored(logits, self.before[tokens] * (states @ self.projection.T), self.after, self.top)


@relaxed
def _scored(logits: Float32, contexts: Float32, after: Float32, top: int) -> Float32:
    found = np.full(logits.shape, -np.inf, np.float32)
    best, places = np.empty(top, np.float64), np.empty(top, np.int64)
    for r in range(len(logits)):
        best[:] = -np.inf
        for v in range(logits.shape[1]):
            if logits[r, v] > best[top - 1]:
                insert(best, places, np.float64(logits[r, v]), v)
        for i in range(top):
            if best[i] > -np.inf:
                score = np.float32(0.0)
                for j in range(contexts.shape[1]):
                    score += contexts[r, j] * after[places[i], j]
                found[r, places[i]] = logits[r, places[i]] + score
    return found

"""Log-probabilities of a row, as they are reported."""

from __future__ import annotations

from services.generation.engine.events import TokenLogprobs
from services.generation.engine.sampling.elementary import log64
from services.generation.engine.sampling.row import Row
from services.generation.engine.sampling.selection import SCALE, top, total_weight


def logprobs_of(row: Row, token: int, count: int) -> TokenLogprobs:
    """Log-softmax of a row at `token` and at the `count` most likely ids (the lowest id first among equals)."""
    normaliser = log64(float(total_weight(row.logits, row.best, 1.0)) / SCALE)

    def logprob(id: int) -> float:
        return (float(row.logits[id]) - row.best) - normaliser

    likeliest = sorted(top(row, count).tolist(), key=lambda id: (-row.logits[id], id)) if count else []
    return TokenLogprobs(token, logprob(token), tuple((id, logprob(id)) for id in likeliest))

"""A reference pass: one pass of kolm's own arithmetic along another engine's output, and how likely that output is.

The other engine adds in another order, and perhaps with fewer bits, so its logits are near the reference's, but not
equal. An honest engine's token may lose a near tie; its logit is never much smaller than the best. Sampled tokens are
compared with the distribution that the receipt's parameters give for the reference's logits: one token proves nothing,
the sum over many does. If the engine's random numbers for a seed are known, each token is compared with
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ledger.documents.audit import SHORT, ReferencePass
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.sampling.processors import LogitsProcessors, end_ids
from services.generation.target.arrays import Float32

_NOISE = 0.1  # standard deviation of an honest engine's logits from the reference's
_NEAR = 0.01  # allowed deviation of cumulative probabilities


def drawn_by_llama_server(seed: int) -> Iterator[float]:
    """A number from 0 to 1 for each token of a sampled output: C++'s std::mt19937 from the seed, two words for each
    number, as std::generate_canonical makes a double. llama.cpp takes the first candidate at which the sum of
    probabilities reaches the number.
    """
    words = np.random.RandomState(seed)
    while True:
        low, high = words.randint(0, 2**32, 2, np.uint32).tolist()
        yield (low + high * 2**32) / 2**64


@dataclass(slots=True)
class Scores:
    """The statistics of one output, token by token."""

    sampled: bool
    margins: list[float] = field(default_factory=list)
    excess: float = 0.0  # nats by which the output is rarer than expected
    variance: float = 0.0
    rarest: float = 0.0
    missed: float | None = None

    def add(self, logits: Float32, token: int, params: SamplingParams, drawn: float | None = None) -> None:
        """Add the next token, with its logits after penalties and biases, and llama-server's random number for it."""
        if not self.sampled:
            self.margins.append(float(logits.max() - logits[token]))
            return
        kept, least = _kept(logits, params)
        outside = float(logits[token]) < least
        self.margins.append(_short_of_kept(logits, token, params) if outside else 0.0)
        scaled = (kept - kept[0]) / params.temperature
        normaliser = math.log(float(np.exp(scaled).sum()))
        logs = scaled - normaliser
        shares = np.exp(logs)
        entropy = -float((shares * logs).sum())
        self.variance += float((shares * logs * logs).sum()) - entropy**2 + (_NOISE / params.temperature) ** 2
        chosen = max(float(logits[token]), least)  # the margin accounts for a token that was left out
        surprise = normaliser - (chosen - float(kept[0])) / params.temperature
        self.excess += surprise - entropy
        self.rarest = max(self.rarest, surprise)
        if drawn is not None:
            self.missed = (self.missed or 0.0) + (0.0 if outside else _missed(logits, kept, token, params, drawn))

    def result(self, base_cid: str) -> ReferencePass:
        return ReferencePass(
            base_cid=base_cid,
            mean=sum(self.margins) / max(SHORT, len(self.margins)),
            largest=max(self.margins, default=0.0),
            differing=sum(margin > 0.0 for margin in self.margins),
            surprise=self.excess / math.sqrt(self.variance) if self.variance else None,
            rarest=self.rarest if self.sampled else None,
            missed=None if self.missed is None else self.missed / max(SHORT, len(self.margins)),
        )


def _kept(logits: Float32, params: SamplingParams) -> tuple[NDArray[np.float64], float]:
    """The logits that top_k, min_p and top_p keep, applied in that order; descending. And the least of them."""
    falling = np.sort(logits.astype(np.float64))[::-1]
    falling = falling[np.isfinite(falling)]
    if params.top_k:
        falling = falling[: params.top_k]
    if params.min_p > 0.0:
        falling = falling[falling >= falling[0] + params.temperature * math.log(params.min_p)]
    if params.top_p < 1.0:
        shares = np.exp((falling - falling[0]) / params.temperature)
        before = np.cumsum(shares) - shares
        falling = falling[before < params.top_p * shares.sum()]
    return falling, float(falling[-1])


def _short_of_kept(logits: Float32, token: int, params: SamplingParams) -> float:
    """The increase with which the logit of a filtered token would be kept, if all others are unchanged. The distance to
    the least kept logit is no measure: at the end of top_p, a token with a much smaller logit may be nearly kept.
    """
    value = float(logits[token])
    others: NDArray[np.float64] = np.delete(logits.astype(np.float64), token)
    falling = np.sort(others[np.isfinite(others)])[::-1]
    needed = value
    if 0 < params.top_k <= len(falling):
        needed = max(needed, float(falling[params.top_k - 1]))
        falling = falling[: params.top_k - 1]
    if params.min_p > 0.0 and len(falling):
        least = float(falling[0]) + params.temperature * math.log(params.min_p)
        needed, falling = max(needed, least), falling[falling >= least]
    if params.top_p < 1.0 and len(falling):
        shares: NDArray[np.float64] = np.append(np.exp((falling - falling[0]) / params.temperature), 0.0)
        before, whole = np.cumsum(shares) - shares, shares.sum()
        least_share = float(np.maximum(shares, before / params.top_p - whole).min())
        needed = max(needed, float(falling[0]) + params.temperature * math.log(least_share))
    return needed - value


def _missed(logits: Float32, kept: NDArray[np.float64], token: int, params: SamplingParams, drawn: float) -> float:
    """The distance, as a probability beyond _NEAR, of llama-server's random number from the numbers that give this
    token.

    Candidates are in the order of their logits if top_k or top_p is set, and otherwise of their ids. Candidates with
    logits near the token's may precede or follow it.
    """
    value, best = float(logits[token]), float(kept[0])
    own = math.exp((value - best) / params.temperature)
    shares = np.exp((kept - best) / params.temperature)
    if params.top_k or params.top_p < 1.0:
        others = np.delete(kept, np.searchsorted(-kept, -value))
        first, last = np.searchsorted(-others, (-value - 2 * _NOISE, -value + 2 * _NOISE))
        before = np.append(0.0, np.cumsum(np.exp((others - best) / params.temperature)))[first : last + 1]
    else:
        smaller = logits[:token].astype(np.float64)
        before = np.exp((smaller[smaller >= kept[-1]] - best) / params.temperature).sum(keepdims=True)
    place = drawn * shares.sum()
    away = float(np.maximum(before - place, place - before - own).min() / shares.sum())
    return max(0.0, away - _NEAR)


def scored(
    request: EngineRequest,
    output: Iterable[int],
    logits: Iterable[Float32],
    eos: tuple[int, ...],
    base_cid: str,
    drawn: Iterator[float] | None = None,
) -> ReferencePass:
    """The statistics of an output, given the raw logits of each of its tokens, and llama-server's random numbers."""
    params = request.sampling
    processors = LogitsProcessors(params, request.prompt, end_ids(params, eos))
    scores = Scores(params.temperature > 0.0)
    for token, row in zip(output, logits, strict=True):
        scores.add(processors.apply(row), token, params, None if drawn is None else next(drawn))
        processors.accept(token)
    return scores.result(base_cid)

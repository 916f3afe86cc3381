"""What a draft goes on with: the likeliest tokens of a row of logits, drawn with the noise of the target's sampler."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.eagle3.vector_search import above, largest
from services.generation.drafting.relaxed import relaxed
from services.generation.engine.sampling.philox import gumbel

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

UNCOUPLED, WHOLE, DOUBTED = range(-1, 2)  # rules of `coupling`: how much of the sampler's noise a draft is drawn with
_SURE = 1e-3  # doubt up to which noise that it weighs is not drawn at all: that costs more than the rest of a token
_REACH = 10.0  # nats below the best from which a token is not drawn for: its noise would have to be rarer than e^-10


class Draws(NamedTuple):
    """How the token after each row is sampled; all [rows]."""

    temperatures: NDArray[np.float64]
    seeds: NDArray[np.uint64]
    choices: Int32
    positions: Int32  # of the tokens to come
    rules: Int32
    cuts: NDArray[np.float64]  # [rows, (top_k, top_p, min_p)]


class Children(NamedTuple):
    """Of each row: `tokens` of the target and the `shares` that the head gives them, [rows, width], the best first;
    `firsts` [rows, 2], what WHOLE and DOUBTED put first, the same where there is hardly a doubt.
    """

    tokens: Int64
    shares: Float32
    firsts: Int64


@relaxed
def best_children(
    logits: Float32, target_ids: Int64, draws: Draws, asked: Int64, given: Float32, children: Children
) -> None:
    """Fill `children` with the tokens that the head holds likeliest after each row, and the share of each.

    logits [rows, draft_vocab_size]. Where a row's temperature is above 0 and its rule is not UNCOUPLED, logits /
    temperature gets the noise that the target's sampler will use there (DESIGN, leg 2), so that the order is that of
    likely winners, of the tokens that `cuts` leave, as the sampler takes them; DOUBTED weighs the noise by the
    probability of all tokens but the likeliest. A share is the token's part of the softmax over those scores; those of
    the draft ids `asked` [rows, any] are `given`, -1 where an id is below 0.
    """
    tokens, shares, firsts = children.tokens, children.shares, children.firsts
    temperatures, seeds, choices, positions, rules, cuts = draws
    width = tokens.shape[1]
    places, kept = np.empty(width, np.int64), np.empty(logits.shape[1], np.int64)
    top = np.empty(width, np.float64)
    for r in range(logits.shape[0]):
        row, temperature = logits[r], temperatures[r]
        scale = 1.0 / temperature if temperature > 0.0 else 1.0
        best = largest(row)
        limit = min(best - np.float32(_REACH / scale), np.nextafter(best, np.float32(-np.inf)))
        if temperature > 0.0:
            limit = _limit(row, scale, limit, cuts[r], kept)
        likely = kept[: above(row, limit, kept)]
        coupled = temperature > 0.0 and rules[r] != UNCOUPLED
        doubt = _doubt(row, best, scale, likely) if coupled else 0.0
        noisy = coupled and (rules[r] == WHOLE or doubt > _SURE)
        weight = 1.0 if rules[r] == WHOLE else doubt
        top[:] = -np.inf
        places[:] = 0
        whole = doubted = -np.inf
        firsts[r] = -1
        total, pivot = 0.0, np.float64(best) * scale
        for v in likely:
            score = np.float64(row[v]) * scale
            if noisy:
                noise = gumbel(seeds[r], choices[r], positions[r], target_ids[v])
                if score + noise > whole and doubt > _SURE:
                    whole, firsts[r, WHOLE] = score + noise, target_ids[v]
                if score + doubt * noise > doubted and doubt > _SURE:
                    doubted, firsts[r, DOUBTED] = score + doubt * noise, target_ids[v]
                score += weight * noise
            if score > pivot:
                total, pivot = total * np.exp(pivot - score), score
            total += np.exp(score - pivot)
            if score > top[width - 1]:
                _insert(top, places, score, v)
        if doubt <= _SURE:
            firsts[r] = target_ids[places[0]]
        for i in range(width):
            tokens[r, i] = target_ids[places[i]] if top[i] > -np.inf else -1
            shares[r, i] = np.exp(top[i] - pivot) / total if top[i] > -np.inf else 0.0
        for i in range(asked.shape[1]):
            v = asked[r, i]
            given[r, i] = -1.0
            if v >= 0:
                score = np.float64(row[v]) * scale
                if noisy:
                    score += weight * gumbel(seeds[r], choices[r], positions[r], target_ids[v])
                given[r, i] = np.exp(score - pivot) / total if row[v] > limit else 0.0


@relaxed
def _insert(top: NDArray[np.float64], places: NDArray[np.int64], score: float, v: int) -> None:
    """Among the best, in place of the last: before lower ones, behind equals."""
    at = len(top) - 1
    while at > 0 and top[at - 1] < score:
        top[at], places[at] = top[at - 1], places[at - 1]
        at -= 1
    top[at], places[at] = score, v


@relaxed
def _doubt(row: Float32, best: np.float32, scale: float, places: NDArray[np.int64]) -> float:
    """The probability of all `places` but the best one."""
    total = 0.0
    for v in places:
        total += np.exp((np.float64(row[v]) - np.float64(best)) * scale)
    return 1.0 - 1.0 / total


@relaxed
def _limit(
    row: Float32, scale: float, least: np.float32, cut: NDArray[np.float64], places: NDArray[np.int64]
) -> np.float32:
    """The logit that tokens have to be above; tokens up to `least` are out. Writes into `places` [row].

    By min-p, then top-k, then top-p of what those leave (`Sampler`); equals of the last one stay.
    """
    if cut[0] <= 0.0 and cut[1] >= 1.0 and cut[2] <= 0.0:
        return least
    falling = -np.sort(-row[places[: above(row, least, places)]])
    if len(falling) == 0:
        return least
    last = len(falling) if cut[0] <= 0.0 else min(len(falling), int(cut[0]))
    if cut[2] > 0.0:
        while last > 1 and (falling[last - 1] - falling[0]) * scale < np.log(cut[2]):
            last -= 1
    weights = np.exp((falling[:last] - falling[0]).astype(np.float64) * scale)
    if cut[1] < 1.0:
        enough, before, last = cut[1] * weights.sum(), 0.0, 0
        while last < weights.shape[0] and before < enough:
            before += weights[last]
            last += 1
    limit: np.float32 = np.nextafter(falling[last - 1], np.float32(-np.inf))
    return limit

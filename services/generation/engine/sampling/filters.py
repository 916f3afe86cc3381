"""top-k, top-p and min-p: which ids of a row a token is drawn from."""

from __future__ import annotations

from typing import Any

import numpy as np

from services.generation.engine.numba_cache import compiled, inlined
from services.generation.engine.sampling.race import GROUP, Row, exp64, key_of, log64, value_of
from services.generation.target.arrays import Float32, Int32, UInt64

SCALE = 2.0**40  # the best token's weight; sums over 2**20 ids stay below 2**61

_WEIGHTLESS = -28.0  # nats below the best from which a weight is 0; ln(1 / SCALE) is -27.7
_SURELY = 2.0**-20  # nats: far more than exp64 and log64 err by
LOWEST_KEY = np.int64(-0x7F800000)  # of -inf
_ZERO = np.uint64(0)
_DIGIT_BITS, _DIGITS = 8, 256


DRAW = np.dtype(
    [
        ("temperature", np.float64), ("top_p", np.float64), ("min_p", np.float64), ("top_k", np.int64),
        ("seed", np.uint64), ("choice", np.int64), ("position", np.int64),
    ]
)  # fmt: skip
"""How the token at a position is drawn: `request.SamplingParams`."""
Draw = Any  # a record of dtype DRAW


@compiled
def candidates(row: Row, draw: Draw) -> Int32:
    """The ids that survive, ascending; an empty array stands for every id, where no filter is set.

    top-k and min-p look at the whole row, top-p at the distribution that they leave, as in vLLM. The best token
    survives all of them.
    """
    logits, temperature, top_p = row.logits, draw.temperature, draw.top_p
    top_k = draw.top_k if draw.top_k < logits.shape[0] else 0
    if top_k == 0 and draw.min_p == 0.0:
        return np.empty(0, np.int32) if top_p == 1.0 else _likeliest(row, temperature, top_p)
    bound = LOWEST_KEY
    if draw.min_p > 0.0:
        bound = least_within(row.best, temperature, log64(draw.min_p))
    tokens = top(row, top_k, bound) if top_k > 0 else at_least(logits, row.peaks, bound)
    if top_p == 1.0:
        return tokens
    weights = weights_of(logits, tokens, row.best, temperature)
    return first(logits, tokens, weights, _limit(top_p, weights.sum()))


@compiled
def top(row: Row, count: int, bound: np.int64) -> Int32:
    """The ids of the `count` largest logits whose keys are at least `bound`, ascending.

    The `count` groups with the largest peaks hold at least `count` logits as large as the last of these peaks.
    """
    if count <= row.peaks.shape[0]:
        last, _ = last_key(row.peaks, np.ones(row.peaks.shape[0], np.uint64), np.uint64(count))
        bound = last if last > bound else bound
    tokens = at_least(row.logits, row.peaks, bound)
    return first(row.logits, tokens, np.ones(tokens.shape[0], np.uint64), np.uint64(count))


@compiled
def _likeliest(row: Row, temperature: float, top_p: float) -> Int32:
    """top-p of the whole row.

    Ids that weigh at most `share` each weigh no more than total - limit together. Before each of them, `limit` is
    reached: they need not be looked at.
    """
    logits = row.logits
    total = total_weight(logits, row.best, temperature)
    limit = _limit(top_p, total)
    share = (np.int64(total) - np.int64(limit)) // logits.shape[0]
    floor = log64(share / SCALE) - _SURELY
    floor = floor if floor > _WEIGHTLESS else _WEIGHTLESS
    tokens = at_least(logits, row.peaks, least_within(row.best, temperature, floor))
    return first(logits, tokens, weights_of(logits, tokens, row.best, temperature), limit)


@compiled
def _limit(top_p: float, total: np.uint64) -> np.uint64:
    """An id survives top-p if the weights before it sum to less. At most `total`, as top_p is below 1."""
    return np.uint64(np.int64(np.ceil(top_p * np.float64(np.int64(total)))))


@inlined
def weight(logit: np.float32, best: float, temperature: float) -> np.uint64:
    """A token's part of the probability beside the best one's, times SCALE, rounded down."""
    return np.uint64(np.int64(exp64((np.float64(logit) - best) / temperature) * SCALE))


@compiled
def total_weight(logits: Float32, best: float, temperature: float) -> np.uint64:
    total = _ZERO
    for i in range(logits.shape[0]):
        total += weight(logits[i], best, temperature)
    return total


@compiled
def weights_of(logits: Float32, tokens: Int32, best: float, temperature: float) -> UInt64:
    chosen, weights = np.empty(tokens.shape[0], np.float32), np.empty(tokens.shape[0], np.uint64)
    for i in range(tokens.shape[0]):
        chosen[i] = logits[tokens[i]]
    for i in range(tokens.shape[0]):
        weights[i] = weight(chosen[i], best, temperature)
    return weights


@compiled
def least_within(best: float, temperature: float, floor: float) -> np.int64:
    """The least key of a logit with (logit - best) / temperature >= floor; floor is at most 0."""
    low, high = LOWEST_KEY, np.int64(key_of(np.float32(best).view(np.int32)))
    while low < high:
        middle = (low + high) >> 1
        if (np.float64(value_of(np.int32(middle))) - best) / temperature >= floor:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def at_least(logits: Float32, peaks: Int32, bound: np.int64) -> Int32:
    """The ids of logits whose keys are at least `bound`, ascending."""
    tokens, count, least = np.empty(logits.shape[0] + 1, np.int32), 0, value_of(np.int32(bound))
    for group in range(peaks.shape[0]):
        if peaks[group] >= bound:
            for i in range(group * GROUP, min(group * GROUP + GROUP, logits.shape[0])):
                tokens[count] = i
                count += logits[i] >= least
    return tokens[:count].copy()


@compiled
def last_key(keys: Int32, weights: UInt64, limit: np.uint64) -> tuple[np.int64, np.uint64]:
    """The least key above which the weights sum to less than `limit`, and that sum.

    Digit by digit: the weights of each digit are summed, the digit is found in which `limit` is reached, and only its
    keys are looked at again.
    """
    low, high = -LOWEST_KEY, LOWEST_KEY
    for i in range(keys.shape[0]):  # numba takes longer for `min` than for all of this
        low, high = min(low, np.int64(keys[i])), max(high, np.int64(keys[i]))
    span, shift, above, sums = high - low, 0, _ZERO, np.empty(_DIGITS, np.uint64)
    while span >> shift >= _DIGITS:
        shift += _DIGIT_BITS
    while True:
        for digit in range(_DIGITS):
            sums[digit] = _ZERO
        for i in range(keys.shape[0]):
            sums[(np.int64(keys[i]) - low) >> shift] += weights[i]
        digit = _DIGITS - 1
        while digit > 0 and above + sums[digit] < limit:
            above += sums[digit]
            digit -= 1
        if shift == 0:
            return low + digit, above
        inside, weighing, count = np.empty(keys.shape[0] + 1, np.int32), np.empty(keys.shape[0] + 1, np.uint64), 0
        for i in range(keys.shape[0]):
            inside[count], weighing[count] = keys[i], weights[i]
            count += (np.int64(keys[i]) - low) >> shift == digit
        keys, weights = inside[:count], weighing[:count]
        low, shift = low + (np.int64(digit) << shift), shift - _DIGIT_BITS


@compiled
def first(logits: Float32, tokens: Int32, weights: UInt64, limit: np.uint64) -> Int32:
    """The `tokens`, ascending, that have less than `limit` before them, by falling logit, then by rising id."""
    keys, kept, count = np.empty(tokens.shape[0], np.int32), np.empty(tokens.shape[0] + 1, np.int32), 0
    bits = logits.view(np.int32)
    for i in range(tokens.shape[0]):
        keys[i] = key_of(bits[tokens[i]])
    last, before = last_key(keys, weights, limit)
    for i in range(tokens.shape[0]):
        kept[count] = tokens[i]
        count += (keys[i] > last) | ((keys[i] == last) & (before < limit))
        before += weights[i] if keys[i] == last else _ZERO
    return kept[:count].copy()

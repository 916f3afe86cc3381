"""The largest noisy score among candidates: Gumbel-max sampling with noise that depends on id and position alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.generation.engine.engine_error import UnusableLogits
from services.generation.engine.numba_cache import compiled, inlined
from services.generation.engine.sampling.philox import BLOCKS, TILE, gumbel, noise_of, words_of, words_of_run

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]

GROUP = 128  # ids that share a peak

_MAGNITUDE, _INFINITY, _SIGN = np.int32(0x7FFFFFFF), np.int32(0x7F800000), np.int32(31)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """Logits [vocab_size] with at least one finite value and neither NaN nor +inf.

    `peaks` [ceil(vocab_size / GROUP)] are the keys (`key_of`) of the largest logit of each group. `token` is the lowest
    id among those of the largest logit; `best` and `second` are the two largest values, -0 taken for 0.
    """

    logits: Float32
    peaks: Int32
    token: int
    best: float
    second: float

    @classmethod
    def of(cls, logits: Float32, name: str = "the target's logits") -> Row:
        """Raises UnusableLogits, calling them by `name`."""
        peaks = np.empty(-(-len(logits) // GROUP), np.int32)
        largest = _peaks(logits.view(np.int32), peaks)
        if largest > _INFINITY:
            raise UnusableLogits(f"{name} hold a NaN")
        token, best, second = _two_best(logits.view(np.int32), peaks)
        if best == math.inf:
            raise UnusableLogits(f"{name} hold an infinity: they have left the range of float32")
        if best == -math.inf:
            raise UnusableLogits(f"{name} leave no token to choose: all of them are -inf")
        return cls(logits, peaks, token, float(best), float(second))


@inlined
def key_of(bits: np.int32) -> np.int32:
    """An integer for the bits of a float32: in the order of the values, equal for equals, -0 and 0 among them."""
    sign = bits >> _SIGN
    return ((bits & _MAGNITUDE) ^ sign) - sign


@compiled
def value_of(key: np.int32) -> np.float32:
    """The float32 that a key stands for."""
    value = np.int32(abs(key)).view(np.float32)
    return -value if key < 0 else value


@compiled
def _peaks(bits: Int32, peaks: Int32) -> np.int32:
    """Fills `peaks`; the largest magnitude of all, as a key: above that of infinity if there is a NaN."""
    largest = np.int32(0)
    for group in range(peaks.shape[0]):
        part = bits[group * GROUP : (group + 1) * GROUP]
        peak = -_INFINITY
        for i in range(part.shape[0]):
            key, magnitude = key_of(part[i]), part[i] & _MAGNITUDE
            peak = key if key > peak else peak
            largest = magnitude if magnitude > largest else largest
        peaks[group] = peak
    return largest


@compiled
def _two_best(bits: Int32, peaks: Int32) -> tuple[int, np.float32, np.float32]:
    """The lowest id of the largest, the two largest values."""
    group, best, second = 0, peaks[0], -_INFINITY
    for other in range(1, peaks.shape[0]):
        if peaks[other] > best:
            group, best, second = other, peaks[other], best
        else:
            second = max(second, peaks[other])
    token = -1
    for i in range(group * GROUP, min(group * GROUP + GROUP, bits.shape[0])):
        key = key_of(bits[i])
        if key == best and token < 0:
            token = i
        else:
            second = max(second, key)
    return token, value_of(best), value_of(second)


_LOG2_E = 1.4426950408889634
_WORD = 31.0  # octaves of a random word that are looked at first
_MARGIN = 1e-3  # octaves: what `_may_win` rounds away, fifty times over
_NOISE = 64.0  # above all noises of two candidates together: beside |score|, what float64 rounds its last bits off
_ROUNDING = 2.0**-50  # 8 roundings; a comparison of two scores has 3
_LEAST, _MOST = np.float32(-126.0), np.float32(100.0)  # octaves within which float32 has its exponents
_BIAS, _OCTAVE = np.float32(127.0), np.float32(2.0**23)  # of float32's bits
_LAST_BIT = np.uint32(1)


@inlined
def _may_win(
    value: np.float32, word: np.uint32, highest: np.float32, octaves: np.float32, limit: np.float32
) -> np.bool_:
    """False only if a candidate with this logit and random word cannot reach the score that `limit` stands for.

    To make up for a gap, its noise needs u > exp(-exp(-gap)) >= 1 - exp(-gap): the word's distance from the largest is
    then at most exp(-gap) of all words. exp(-gap) = 2**y is bounded by the line through its values at whole y, which
    the bits of a float32 follow.
    """
    y = limit - (highest - value) * octaves
    y = y if y > _LEAST else _LEAST
    y = y if y < _MOST else _MOST
    bound = np.int32((y + _BIAS) * _OCTAVE).view(np.float32)
    return np.float32(np.int32(~word >> _LAST_BIT)) <= bound


@compiled
def _any_may_win(
    values: NDArray[np.float32], words: NDArray[np.uint32], highest: np.float32, octaves: np.float32, limit: np.float32
) -> np.bool_:
    """Whether one of a tile's candidates may; `words` as `words_of` has them."""
    count = np.int32(0)
    for b in range(BLOCKS):
        for j in range(4):
            count += np.int32(_may_win(values[4 * b + j], words[j * BLOCKS + b], highest, octaves, limit))
    return count > 0


@inlined
def _limit(scaled: float, top: float) -> np.float32:
    """`_may_win`'s bound on y for a candidate with the largest logit, whose score without noise is `scaled`, to reach
    the score `top`.
    """
    slack = (abs(scaled) + _NOISE) * _ROUNDING
    return np.float32((scaled - top + slack) * _LOG2_E + (_WORD + _MARGIN))


@compiled
def noisy_argmax(
    logits: NDArray[np.float32], best: int, tokens: NDArray[np.int32] | None, temperature: float,
    seed: np.uint64, choice: int, position: int,
) -> int:  # fmt: skip
    """The id with the largest float64(logit) / temperature + noise, the lowest id among equals.

    logits [vocab_size] without NaN and +inf; the candidates are `tokens` [n], ascending, or all ids for None; `best` is
    the one with the largest logit, which is finite. Candidates whose words prove that they cannot win are given up
    before their noise is computed.
    """
    highest, octaves = logits[best], np.float32(_LOG2_E / temperature)
    scaled = np.float64(highest) / temperature
    winner, top = best, scaled + gumbel(seed, choice, position, best)
    limit = _limit(scaled, top)
    words, values, ids = np.empty(TILE, np.uint32), np.empty(TILE, np.float32), np.zeros(TILE, np.int32)
    count = logits.shape[0] if tokens is None else tokens.shape[0]
    for start in range(0, count, TILE):
        size = min(TILE, count - start)
        values[size:] = -np.inf  # where the last tile has no candidates
        if tokens is None:
            values[:size] = logits[start : start + size]
            words_of_run(seed, choice, position, start, words)
        else:
            for i in range(size):
                ids[i], values[i] = tokens[start + i], logits[tokens[start + i]]
            words_of(seed, choice, position, ids, words)
        if not _any_may_win(values, words, highest, octaves, limit):
            continue
        for i in range(size):
            word = words[(i & 3) * BLOCKS + (i >> 2)]
            if _may_win(values[i], word, highest, octaves, limit):
                token = start + i if tokens is None else ids[i]
                score = np.float64(values[i]) / temperature + noise_of(word)
                if score > top or (score == top and token < winner):
                    winner, top = token, score
                    limit = _limit(scaled, top)
    return winner

"""Gumbel-max sampling: the largest noisy score among candidates, with noise that depends only on id and position."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from services.generation.engine.numba_cache import compiled, inlined
from services.generation.engine.request import UnusableLogits
from services.generation.target.arrays import Float32, Int32, UInt32
from services.generation.target.unread import Best, UnreadRow

LOG2_E = float.fromhex("0x1.71547652b82fep+0")
LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")  # 32 bits of ln 2, so that k * LN2_HIGH is exact (Cody and Waite)
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
LOWEST = -708.0  # exp64 is 0 below, where its values are nearly subnormal
HIGHEST = 709.0  # and infinite above

_ROUND = float.fromhex("0x1.8p+52")  # adding it rounds to a whole number, which the low bits then hold
_ROUND_BITS = np.int64(0x4338000000000000)  # of _ROUND
_BIAS = np.int64(1023)
_FRACTION = np.int64(52)  # bits of a float64 below its exponent
_FRACTION_BITS = np.int64(2**52 - 1)
_HALF_ROOT = np.int64(0x3FE6A09E667F3BCD)  # bits of sqrt(1/2)
_ONE_BITS = np.int64(0x3FF0000000000000)
_LEAST_NORMAL = float.fromhex("0x1p-1022")

_E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10, _E11, _E12, _E13 = (1.0 / math.factorial(n) for n in range(2, 14))
_L1, _L2, _L3, _L4, _L5, _L6, _L7, _L8, _L9, _L10 = (2.0 / (2 * n + 1) for n in range(1, 11))
BLOCKS = 64
TILE = 4 * BLOCKS  # ids whose words are drawn together
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)  # multipliers and Weyl constants of the paper's Philox4x32
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF_WORD = np.uint64(32)
_NOTHING = np.uint64(0)
GROUP = 128  # ids that share a peak
_MAGNITUDE, _INFINITY, _SIGN = np.int32(0x7FFFFFFF), np.int32(0x7F800000), np.int32(31)
_LOG2_E = 1.4426950408889634
_WORD = 31.0  # octaves of a random word that are examined first
_MARGIN = 1e-3  # octaves: fifty times the rounding error of `_may_win`
_NOISE = 64.0  # above the noises of two candidates together: added to |score|, the magnitude that float64 rounds
_ROUNDING = 2.0**-50  # 8 roundings; a comparison of two scores has 3
_LEAST, _MOST = np.float32(-126.0), np.float32(100.0)  # octaves within which float32 has its exponents
_FLOAT_BIAS, _OCTAVE = np.float32(127.0), np.float32(2.0**23)  # of float32's bits
_LAST_BIT = np.uint32(1)
_ALL = np.empty(0, np.int32)


@inlined
def exp64(x: float) -> float:
    """e**x. 1 at ±0, 0 below LOWEST, inf above HIGHEST, NaN of NaN."""
    inside = x if x > LOWEST else LOWEST
    shifted = inside * LOG2_E + _ROUND
    k = shifted - _ROUND
    r = (inside - k * LN2_HIGH) - k * LN2_LOW
    high = _E8 + r * (_E9 + r * (_E10 + r * (_E11 + r * (_E12 + r * _E13))))
    q = _E2 + r * (_E3 + r * (_E4 + r * (_E5 + r * (_E6 + r * (_E7 + r * high)))))
    power = ((np.float64(shifted).view(np.int64) - _ROUND_BITS) + _BIAS) << _FRACTION
    value = (1.0 + (r + (r * r) * q)) * np.int64(power).view(np.float64)
    limited = np.inf if x > HIGHEST else value
    return x if x != x else (0.0 if x < LOWEST else limited)


@compiled
def log64(x: float) -> float:
    """The natural logarithm. -inf at ±0, inf at inf, NaN below 0 and of NaN; exactly 0 at 1."""
    if not 0.0 < x < np.inf:
        return -np.inf if x == 0.0 else (x if x > 0.0 else np.nan)
    small = x < _LEAST_NORMAL
    return log_of_normal(x * 18014398509481984.0 if small else x, np.int64(54) if small else np.int64(0))  # 2**54


@inlined
def log_of_normal(x: float, octaves: np.int64) -> float:
    """`log64` of x / 2**octaves, for an x that is positive and neither subnormal nor infinite."""
    shifted = np.float64(x).view(np.int64) + (_ONE_BITS - _HALF_ROOT)
    k = np.float64((shifted >> _FRACTION) - _BIAS - octaves)
    f = np.int64((shifted & _FRACTION_BITS) + _HALF_ROOT).view(np.float64) - 1.0
    s = f / (2.0 + f)
    z = s * s
    high = _L6 + z * (_L7 + z * (_L8 + z * (_L9 + z * _L10)))
    r = z * (_L1 + z * (_L2 + z * (_L3 + z * (_L4 + z * (_L5 + z * high)))))
    half_square = (0.5 * f) * f
    return (((s * (half_square + r) + k * LN2_LOW) - half_square) + f) + k * LN2_HIGH


@inlined
def _rounds(
    c0: np.uint64, c1: np.uint64, c2: np.uint64, c3: np.uint64, k0: np.uint64, k1: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """Words are held in 64 bits, like their products."""
    for _ in range(_ROUNDS):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> _HALF_WORD) ^ c1 ^ k0, p1 & _LOW, (p0 >> _HALF_WORD) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0, c1, c2, c3


@inlined
def word_of(seed: np.uint64, choice: int, position: int, token: int) -> np.uint32:
    """The random word of an id."""
    block = np.uint64(token) >> np.uint64(2)
    w0, w1, w2, w3 = _rounds(
        block & _LOW, np.uint64(position) & _LOW, np.uint64(choice) & _LOW, _NOTHING, seed & _LOW, seed >> _HALF_WORD
    )
    place = np.uint64(token) & np.uint64(3)
    even = w0 if place == np.uint64(0) else w2
    odd = w1 if place == np.uint64(1) else w3
    return np.uint32(odd if place & np.uint64(1) else even)


@compiled
def words_of(seed: np.uint64, choice: int, position: int, tokens: Int32, words: UInt32) -> None:
    """The random words of `tokens` [TILE] into `words` [TILE], that of tokens[4 b + j] into words[j BLOCKS + b].

    The words of a block are stored apart, so that blocks can be computed in vector lanes.
    """
    for j in range(4):
        for b in range(BLOCKS):
            words[j * BLOCKS + b] = word_of(seed, choice, position, tokens[4 * b + j])


@compiled
def words_of_run(seed: np.uint64, choice: int, position: int, first: int, words: UInt32) -> None:
    """The words of `words_of` for the TILE ids from `first` on, a multiple of 4."""
    c1, c2 = np.uint64(position) & _LOW, np.uint64(choice) & _LOW
    k0, k1 = seed & _LOW, seed >> _HALF_WORD
    block = np.uint64(first) >> np.uint64(2)
    for b in range(BLOCKS):
        w0, w1, w2, w3 = _rounds(block + np.uint64(b), c1, c2, _NOTHING, k0, k1)
        words[b], words[BLOCKS + b], words[2 * BLOCKS + b], words[3 * BLOCKS + b] = w0, w1, w2, w3


@compiled
def noise_of(word: np.uint32) -> float:
    """Standard Gumbel noise, float64: -log(-log u), u = (word + 1/2) / 2**32."""
    return -log64(-log64((np.float64(word) + 0.5) * 2.0**-32))


@compiled
def gumbel(seed: np.uint64, choice: int, position: int, token: int) -> float:
    """The noise of an id."""
    return noise_of(word_of(seed, choice, position, token))


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """Logits [vocab_size] with at least one finite value and neither NaN nor +inf.

    `peaks` [ceil(vocab_size / GROUP)] are the keys (`key_of`) of the largest logit of each group. `token` is the lowest
    id with the largest logit; `best` and `second` are the two largest values, with 0 for -0.
    """

    logits: Float32
    peaks: Int32
    token: int
    best: float
    second: float

    @classmethod
    def of(cls, logits: Float32, name: str = "the target's logits") -> Row:
        """Examine the logits. Raises UnusableLogits with `name` in its message."""
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


class LateRow:
    """A `Row` on a device: its logits are read when they are asked for."""

    def __init__(self, row: UnreadRow, best: Best) -> None:
        self.token, self.best, self.second = best
        self._unread = row

    @cached_property
    def _row(self) -> Row:
        return Row.of(self._unread.read())

    @property
    def logits(self) -> Float32:
        return self._row.logits

    @property
    def peaks(self) -> Int32:
        return self._row.peaks


AnyRow = Row | LateRow


def examined(logits: Float32 | UnreadRow) -> AnyRow:
    """The target's row. Raises UnusableLogits."""
    if not isinstance(logits, UnreadRow):
        return Row.of(logits)
    return Row.of(logits.read()) if logits.best is None else LateRow(logits, logits.best)


@inlined
def key_of(bits: np.int32) -> np.int32:
    """An integer key of a float32: in the order of the values, and equal for equal values, such as -0 and 0."""
    sign = bits >> _SIGN
    return ((bits & _MAGNITUDE) ^ sign) - sign


@compiled
def value_of(key: np.int32) -> np.float32:
    """The float32 of a key."""
    value = np.int32(abs(key)).view(np.float32)
    return -value if key < 0 else value


@compiled
def _peaks(bits: Int32, peaks: Int32) -> np.int32:
    """Fill `peaks`; returns the largest magnitude as a key, which is above infinity's for a NaN."""
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
    """The lowest id with the largest value, and the two largest values."""
    group, best, second = 0, peaks[0], -_INFINITY
    for other in range(1, peaks.shape[0]):
        if peaks[other] > best:
            group, best, second = other, peaks[other], best
        else:
            second = peaks[other] if peaks[other] > second else second  # numba takes long for `max`
    token = -1
    for i in range(group * GROUP, bits.shape[0]):
        if i == group * GROUP + GROUP:
            break
        key = key_of(bits[i])
        if key == best and token < 0:
            token = i
        else:
            second = key if key > second else second
    return token, value_of(best), value_of(second)


@inlined
def _may_win(
    value: np.float32, word: np.uint32, highest: np.float32, octaves: np.float32, limit: np.float32
) -> np.bool_:
    """False only if a candidate with this logit and random word cannot reach the score of `limit`.

    To make up for a gap, its noise needs u > exp(-exp(-gap)) >= 1 - exp(-gap): the word's distance from the largest is
    then at most exp(-gap) of all words. exp(-gap) = 2**y is bounded by the line through its values at whole y, which
    the bits of a float32 follow.
    """
    y = limit - (highest - value) * octaves
    y = y if y > _LEAST else _LEAST
    y = y if y < _MOST else _MOST
    bound = np.int32((y + _FLOAT_BIAS) * _OCTAVE).view(np.float32)
    return np.float32(np.int32(~word >> _LAST_BIT)) <= bound


@compiled
def _any_may_win(
    values: Float32, words: UInt32, highest: np.float32, octaves: np.float32, limit: np.float32
) -> np.bool_:
    """Whether a candidate of a tile may win; `words`: as by `words_of`."""
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


def noisy_argmax(
    logits: Float32, best: int, tokens: Int32 | None, temperature: float,
    seed: np.uint64, choice: int, position: int,
) -> int:  # fmt: skip
    """The id with the largest float64(logit) / temperature + noise, the lowest id among equals.

    logits [vocab_size] without NaN and +inf; the candidates are `tokens` [n], ascending, or all ids for None; `best`:
    the candidate with the largest logit, which is finite. Candidates whose words prove that they cannot win are dropped
    before their noise is computed.
    """
    among = _ALL if tokens is None else tokens  # None is another type, for which numba would compile everything again
    return int(_noisy_argmax(logits, best, among, temperature, seed, choice, position))


@compiled
def _noisy_argmax(
    logits: Float32, best: int, tokens: Int32, temperature: float, seed: np.uint64, choice: int, position: int
) -> int:
    highest, octaves = logits[best], np.float32(_LOG2_E / temperature)
    scaled = np.float64(highest) / temperature
    winner, top = best, scaled + gumbel(seed, choice, position, best)
    limit = _limit(scaled, top)
    words, values, ids = np.empty(TILE, np.uint32), np.empty(TILE, np.float32), np.empty(TILE, np.int32)
    every = tokens.shape[0] == 0
    count = logits.shape[0] if every else tokens.shape[0]
    for start in range(0, count, TILE):
        size = min(TILE, count - start)
        for i in range(size, TILE):
            values[i] = -np.inf  # rest of the last tile without candidates
        if every:
            for i in range(size):  # numba takes two seconds to compile a slice, for its shape error
                values[i] = logits[start + i]
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
                token = start + i if every else int(ids[i])
                score = np.float64(values[i]) / temperature + noise_of(word)
                if score > top or (score == top and token < winner):
                    winner, top = token, score
                    limit = _limit(scaled, top)
    return winner

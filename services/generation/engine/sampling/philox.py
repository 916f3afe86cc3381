"""Philox4x32-10 (Salmon et al., SC 2011) and its noise, a function of seed, choice, position and id.

The block with counter (id // 4, position, choice, 0), its key the seed, holds the random words of four ids.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from services.generation.engine.numba_cache import compiled, inlined

LOG2_E = float.fromhex("0x1.71547652b82fep+0")
LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")  # 32 bits of ln 2, so that k * LN2_HIGH is exact (Cody and Waite)
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
LOWEST = -708.0  # exp64 is 0 below: its values there are near the subnormal ones
HIGHEST = 709.0  # and infinite above

_ROUND = float.fromhex("0x1.8p+52")  # adding it rounds to a whole number, which is then in the low bits
_ROUND_BITS = np.int64(0x4338000000000000)  # of _ROUND
_BIAS = np.int64(1023)
_FRACTION = np.int64(52)  # bits of a float64 below its exponent
_FRACTION_BITS = np.int64(2**52 - 1)
_HALF_ROOT = np.int64(0x3FE6A09E667F3BCD)  # bits of sqrt(1/2)
_ONE_BITS = np.int64(0x3FF0000000000000)
_LEAST_NORMAL = float.fromhex("0x1p-1022")

_E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10, _E11, _E12, _E13 = (1.0 / math.factorial(n) for n in range(2, 14))
_L1, _L2, _L3, _L4, _L5, _L6, _L7, _L8, _L9, _L10 = (2.0 / (2 * n + 1) for n in range(1, 11))


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
    scaled = x * 18014398509481984.0 if x < _LEAST_NORMAL else x  # 2**54
    shifted = np.float64(scaled).view(np.int64) + (_ONE_BITS - _HALF_ROOT)
    k = np.float64((shifted >> _FRACTION) - _BIAS - (np.int64(54) if x < _LEAST_NORMAL else np.int64(0)))
    f = np.int64((shifted & _FRACTION_BITS) + _HALF_ROOT).view(np.float64) - 1.0
    s = f / (2.0 + f)
    z = s * s
    high = _L6 + z * (_L7 + z * (_L8 + z * (_L9 + z * _L10)))
    r = z * (_L1 + z * (_L2 + z * (_L3 + z * (_L4 + z * (_L5 + z * high)))))
    half_square = (0.5 * f) * f
    return (((s * (half_square + r) + k * LN2_LOW) - half_square) + f) + k * LN2_HIGH


BLOCKS = 64
TILE = 4 * BLOCKS  # ids whose words are drawn together

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)  # multipliers and Weyl constants of the paper's Philox4x32
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF_WORD = np.uint64(32)
_NOTHING = np.uint64(0)


@inlined
def _rounds(
    c0: np.uint64, c1: np.uint64, c2: np.uint64, c3: np.uint64, k0: np.uint64, k1: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """Words are held in 64 bits, as the products that they enter."""
    for _ in range(_ROUNDS):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> _HALF_WORD) ^ c1 ^ k0, p1 & _LOW, (p0 >> _HALF_WORD) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0, c1, c2, c3


@compiled
def philox4x32(
    c0: np.uint32, c1: np.uint32, c2: np.uint32, c3: np.uint32, k0: np.uint32, k1: np.uint32
) -> tuple[np.uint32, np.uint32, np.uint32, np.uint32]:
    """The block of four random words for a counter and a key."""
    w0, w1, w2, w3 = _rounds(
        np.uint64(c0), np.uint64(c1), np.uint64(c2), np.uint64(c3), np.uint64(k0), np.uint64(k1)
    )  # fmt: skip
    return np.uint32(w0), np.uint32(w1), np.uint32(w2), np.uint32(w3)


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
def words_of(seed: np.uint64, choice: int, position: int, tokens: NDArray[np.int32], words: NDArray[np.uint32]) -> None:
    """The random words of `tokens` [TILE] into `words` [TILE], that of tokens[4 b + j] into words[j BLOCKS + b].

    The words of a block are kept apart, so that blocks can be computed side by side.
    """
    for j in range(4):
        for b in range(BLOCKS):
            words[j * BLOCKS + b] = word_of(seed, choice, position, tokens[4 * b + j])


@compiled
def words_of_run(seed: np.uint64, choice: int, position: int, first: int, words: NDArray[np.uint32]) -> None:
    """As `words_of`, for the TILE ids from `first`, a multiple of 4."""
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

"""Philox4x32-10 (Salmon et al., SC 2011) and its noise, a function of seed, choice, position and id.

The block with counter (id // 4, position, choice, 0), its key the seed, holds the random words of four ids.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from services.generation.engine.sampling.compiled import compiled, inlined
from services.generation.engine.sampling.elementary import log64

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

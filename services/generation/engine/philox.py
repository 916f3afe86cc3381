"""Philox4x32-10 (Salmon et al., SC 2011) and the noise that is drawn from it: a function of seed, choice, position,
id.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)  # multipliers and Weyl constants of the paper's Philox4x32
_W0, _W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF_WORD = np.uint64(32)
_LARGEST_NOISE = 22.9  # -log(-log(u)) for the largest u below 1 that 32 bits give, rounded up


def _compiled(function: Function) -> Function:
    return cast(Function, njit(nogil=True, cache=True)(function))


@_compiled
def philox4x32(
    c0: np.uint32, c1: np.uint32, c2: np.uint32, c3: np.uint32, k0: np.uint32, k1: np.uint32
) -> tuple[np.uint32, np.uint32, np.uint32, np.uint32]:
    """The block of four random words for a counter and a key."""
    for _ in range(_ROUNDS):
        p0 = _M0 * np.uint64(c0)
        p1 = _M1 * np.uint64(c2)
        c0, c1, c2, c3 = (
            np.uint32(np.uint32(p1 >> _HALF_WORD) ^ c1 ^ k0),
            np.uint32(p1 & _LOW),
            np.uint32(np.uint32(p0 >> _HALF_WORD) ^ c3 ^ k1),
            np.uint32(p0 & _LOW),
        )
        k0 = np.uint32(k0 + _W0)
        k1 = np.uint32(k1 + _W1)
    return c0, c1, c2, c3


@_compiled
def _word(seed: np.uint64, choice: int, position: int, token: int) -> np.uint32:
    block = philox4x32(
        np.uint32(token // 4), np.uint32(position), np.uint32(choice), np.uint32(0),
        np.uint32(seed & _LOW), np.uint32(seed >> _HALF_WORD),
    )  # fmt: skip
    return block[token % 4]


@_compiled
def gumbel(seed: np.uint64, choice: int, position: int, token: int) -> float:
    """Standard Gumbel noise, float64: -log(-log u), u = (word + 1/2) / 2**32."""
    u = (float(_word(seed, choice, position, token)) + 0.5) * 2.0**-32
    return -math.log(-math.log(u))


@_compiled
def noisy_argmax(
    logits: NDArray[np.float32],
    tokens: NDArray[np.int64],
    temperature: float,
    seed: np.uint64,
    choice: int,
    position: int,
) -> int:
    """The id in `tokens` with the largest logits[id] / temperature + gumbel, the lowest id first among equals.

    `tokens` [n] are the candidates, by ascending id; an empty array stands for the whole vocabulary. A candidate is
    given up without taking logarithms when its random word proves that it cannot win: to beat `best` it needs u above
    exp(-exp(-gap)) >= 1 - exp(-gap), with gap = best - its own score.
    """
    whole = tokens.shape[0] == 0
    count = logits.shape[0] if whole else tokens.shape[0]
    best_token, top = -1, -np.inf
    for i in range(count):
        token = i if whole else tokens[i]
        if logits[token] > top:
            best_token, top = token, logits[token]
    if best_token < 0:
        return -1
    best = float(top) / temperature + gumbel(seed, choice, position, best_token)
    k0, k1 = np.uint32(seed & _LOW), np.uint32(seed >> _HALF_WORD)
    block_number = -1
    block = philox4x32(np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0), k0, k1)
    for i in range(count):
        token = i if whole else tokens[i]
        score = float(logits[token]) / temperature
        gap = best - score
        if not gap < _LARGEST_NOISE:
            continue
        if token // 4 != block_number:
            block_number = token // 4
            block = philox4x32(
                np.uint32(block_number), np.uint32(position), np.uint32(choice), np.uint32(0), k0, k1
            )  # fmt: skip
        word = block[token % 4]
        if gap > 1.5:
            halvings = int(gap * 1.4426950408889634) - 1  # 2**-halvings >= exp(-gap), with one to spare
            if (float(4294967296) - float(word)) > 2.0 ** (32 - halvings):
                continue
        score += -math.log(-math.log((float(word) + 0.5) * 2.0**-32))
        if score > best or (score == best and token < best_token):
            best, best_token = score, token
    return best_token


@_compiled
def two_best(logits: NDArray[np.float32]) -> tuple[int, np.float32, np.float32]:
    """The id of the largest logit, the lowest among equals, its value, and the second largest value.

    A NaN anywhere gives id -1.
    """
    token, best, second = -1, np.float32(-np.inf), np.float32(-np.inf)
    for i in range(logits.shape[0]):
        value = logits[i]
        if value > second:
            if value > best:
                token, best, second = i, value, best
            else:
                second = value
        elif value != value:
            return -1, value, value
    if token < 0 and logits.shape[0] > 0:
        token = 0
    return token, best, second

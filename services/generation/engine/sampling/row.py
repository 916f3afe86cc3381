"""A row of logits and what one look at it finds: whether it can be sampled from, its two best, its peaks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.generation.engine.engine_error import UnusableLogits
from services.generation.engine.sampling.compiled import compiled, inlined

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

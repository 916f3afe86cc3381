"""Searches of a row of logits in vector registers: one by one, they would take as long as the product before them.

Comparisons are those of integers in the order of the values (`row.key_of`), which LLVM computes side by side.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.relaxed import relaxed
from services.generation.engine.sampling.row import key_of, value_of

Float32 = NDArray[np.float32]

_GROUP = 128  # values that are counted before they are looked at one by one
_INFINITY = np.int32(0x7F800000)


@relaxed
def largest(row: Float32) -> np.float32:
    """The largest value that is a number; -inf where there is none above that."""
    bits, best = row.view(np.int32), -_INFINITY
    for i in range(bits.shape[0]):
        key = key_of(bits[i])
        key = key if key <= _INFINITY else -_INFINITY
        best = key if key > best else best
    return np.float32(value_of(best))


@relaxed
def above(row: Float32, limit: np.float32, places: NDArray[np.int64]) -> int:
    """Write where the row is above `limit` into `places`, ascending, and return how many these are."""
    found = 0
    for start in range(0, row.shape[0], _GROUP):
        group = row[start : start + _GROUP]
        count = np.int32(0)
        for i in range(group.shape[0]):
            count += np.int32(group[i] > limit)
        if count:
            for i in range(group.shape[0]):
                if group[i] > limit:
                    places[found] = start + i
                    found += 1
    return found

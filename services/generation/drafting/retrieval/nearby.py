"""The passages near a request: few enough to be read from front to end, like the request's own text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

_MOST = 16_384
_LONGEST = 16  # tokens of a common end that are compared at most


class Nearby:
    """Their tokens, one passage after the other, a -1 behind each."""

    def __init__(self, passages: Sequence[Int64]) -> None:
        """The nearest ones first; what goes beyond 16,384 tokens is left out."""
        self._text = np.concatenate([np.append(passage, -1) for passage in passages] or [np.zeros(0, np.int64)])
        self._text[_MOST:] = -1
        self._text = self._text[: _MOST + 1]

    def continuations(self, context: Int64, shortest: int, most: int, depth: int) -> tuple[Int64, Int64]:
        """What follows an end of `context` of `shortest` tokens or more, [found, depth], -1 from its passage's end on;
        and how long that end is, [found]. Longest ends first, among equals those of nearer passages; `most` at most.
        """
        return _after(self._text, context, shortest, most, depth)


@njit(nogil=True, cache=True)
def _after(text: Int64, context: Int64, shortest: int, most: int, depth: int) -> tuple[Int64, Int64]:
    places, lengths, found = np.zeros(most, np.int64), np.zeros(most, np.int64), 0
    size = context.shape[0] if most > 0 else 0
    for place in range(shortest, text.shape[0]):
        if text[place] < 0 or size < max(shortest, 1) or text[place - 1] != context[size - 1]:
            continue
        length = 1
        while length < min(place, size, _LONGEST) and text[place - 1 - length] == context[size - 1 - length]:
            length += 1
        if length < shortest or (found == most and length <= lengths[most - 1]):
            continue
        at = min(found, most - 1)
        while at > 0 and lengths[at - 1] < length:
            places[at], lengths[at] = places[at - 1], lengths[at - 1]
            at -= 1
        places[at], lengths[at] = place, length
        found = min(found + 1, most)
    out = np.full((found, depth), -1, np.int64)
    for row in range(found):
        for i in range(depth):
            token = text[places[row] + i]
            if token < 0:
                break
            out[row, i] = token
    return out, lengths[:found]

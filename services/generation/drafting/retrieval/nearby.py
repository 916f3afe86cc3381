"""The passages near a request: few enough to be read from front to end, like the request's own text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

from services.generation.drafting.history import search_elsewhere

Int64 = NDArray[np.int64]

_MOST = 16_384  # tokens


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
        places, lengths, found = search_elsewhere(self._text, context, shortest, most)
        return _following(self._text, places[:found], depth), lengths[:found]


@njit(nogil=True, cache=True)
def _following(text: Int64, places: Int64, depth: int) -> Int64:
    out = np.full((places.shape[0], depth), -1, np.int64)
    for row in range(places.shape[0]):
        for i in range(depth):
            token = text[places[row] + i]
            if token < 0:
                break
            out[row, i] = token
    return out

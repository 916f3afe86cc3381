"""Where the end of a sequence has occurred before in the sequence itself, its prompt included."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

REACH = 16  # tokens of what follows a match that are drafted at most
LONG_MATCH, LONG_REACH = 8, 31  # and after a match of more than 8: text that has repeated itself so far mostly goes on
_LONGEST = 16  # tokens of common suffix that are compared at most
_FIRST_SIZE = 1024


@dataclass(frozen=True, slots=True)
class Match:
    """`place` is the index after an earlier occurrence; `length` the tokens that it has in common with the end."""

    place: int
    length: int


class History:
    """The tokens of one sequence, searched by scanning: 2,000 tokens take two microseconds and no index to keep up."""

    def __init__(self) -> None:
        self._tokens = np.empty(_FIRST_SIZE, np.int64)
        self._count = 0

    def extend(self, tokens: list[int]) -> None:
        """Take in the tokens that are new; `tokens` may only have grown."""
        while len(tokens) > len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
        self._tokens[self._count : len(tokens)] = tokens[self._count :]
        self._count = len(tokens)

    @property
    def tokens(self) -> NDArray[np.int64]:
        """All of them, until `extend` is called again."""
        return self._tokens[: self._count]

    def end(self, most: int) -> NDArray[np.int64]:
        """The last tokens, at most `most` of them."""
        return self._tokens[max(0, self._count - most) : self._count].copy()

    def matches(self, most: int) -> list[Match]:
        """Earlier occurrences of the end, longest first, the most recent first among equals, at most `most` of them."""
        places, lengths, found = search(self.tokens, most)
        return [Match(int(places[i]), int(lengths[i])) for i in range(found)]

    def continuations(self, most: int, depth: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What follows those matches, [found, depth], a repetition taken to go on; and how long each is, [found]."""
        return _continued(self.tokens, most, depth)


@njit(nogil=True, cache=True)
def search(tokens: NDArray[np.int64], most: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """What `History.matches` finds: places, lengths [most], and how many of them there are."""
    places, lengths, found = np.zeros(most, np.int64), np.zeros(most, np.int64), 0
    end = tokens.shape[0] if most > 0 else 0
    for place in range(end - 1, 0, -1):
        if tokens[place - 1] != tokens[end - 1]:
            continue
        length = 1
        while length < min(place, _LONGEST) and tokens[place - 1 - length] == tokens[end - 1 - length]:
            length += 1
        found = _kept(places, lengths, found, place, length)
    return places, lengths, found


@njit(nogil=True, cache=True)
def search_elsewhere(
    text: NDArray[np.int64], end: NDArray[np.int64], shortest: int, most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """As `search`, where `text` has occurrences of at least the last `shortest` tokens of `end`, the first one first
    among equals. A token below 0 ends a piece of text: no match has one, and none lies right before one.
    """
    places, lengths, found = np.zeros(most, np.int64), np.zeros(most, np.int64), 0
    size = end.shape[0] if most > 0 else 0
    for place in range(1, text.shape[0]):
        length = 0
        while length < min(place, size, _LONGEST) and text[place - 1 - length] == end[size - 1 - length]:
            length += 1
        if text[place] >= 0 and length >= max(shortest, 1):
            found = _kept(places, lengths, found, place, length)
    return places, lengths, found


@njit(nogil=True, cache=True)
def _kept(places: NDArray[np.int64], lengths: NDArray[np.int64], found: int, place: int, length: int) -> int:
    """How many matches there are with this one: put behind those that are as long, the last one falls out."""
    most = places.shape[0]
    if found == most and length <= lengths[most - 1]:
        return found
    at = min(found, most - 1)
    while at > 0 and lengths[at - 1] < length:
        places[at], lengths[at] = places[at - 1], lengths[at - 1]
        at -= 1
    places[at], lengths[at] = place, length
    return int(min(found + 1, most))


@njit(nogil=True, cache=True)
def _continued(tokens: NDArray[np.int64], most: int, depth: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    places, lengths, found = search(tokens, most)
    out = np.empty((found, depth), np.int64)
    for row in range(found):
        place = places[row]
        for i in range(depth):
            out[row, i] = tokens[place + i % (tokens.shape[0] - place)]
    return out, lengths[:found]


def continuation(tokens: list[int], place: int, length: int) -> list[int]:
    """`length` tokens from `place` on; past the end of `tokens` the repetition is taken to go on."""
    copied = tokens[place : place + length]
    period = len(tokens) - place
    while len(copied) < length:
        copied.append(copied[len(copied) - period])
    return copied

"""Copies: text that followed earlier occurrences of a text's end, in the text itself or in another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.generation.drafting.acceptance import OWN
from services.generation.engine.numba_cache import relaxed
from services.generation.target.arrays import Int64

LONGEST = 16  # tokens of common end that are compared at most
REACH = 31  # tokens of a copy at most
END = -1  # in a text, behind each of its pieces: no match crosses it, and no copy goes beyond
_FIRST_SIZE = 1024


@dataclass(frozen=True, slots=True)
class Copies:
    """Longest matches first, among equals the last one in the text first."""

    source: int  # see `acceptance`
    tokens: Int64  # [found, depth], END behind each one's end
    lengths: Int64  # [found] tokens that the match before each has in common with the end


class OwnText:
    """The tokens of one sequence."""

    def __init__(self) -> None:
        self._tokens, self._count = np.empty(_FIRST_SIZE, np.int64), 0

    def extend(self, tokens: list[int]) -> None:
        """Take in the tokens that are new; `tokens` may only have grown."""
        while len(tokens) > len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
        self._tokens[self._count : len(tokens)] = tokens[self._count :]
        self._count = len(tokens)

    @property
    def last(self) -> int:
        return int(self._tokens[self._count - 1])

    def __len__(self) -> int:
        return self._count

    def end(self, most: int) -> Int64:
        """The last tokens, at most `most` of them."""
        return self._tokens[max(0, self._count - most) : self._count].copy()

    def copies(self, most: int, depth: int = REACH) -> Copies:
        """Copies of the text that followed earlier occurrences of its end. A repetition is expected to go on."""
        text = self._tokens[: self._count]
        places, lengths = _places(text, text, 1, most, len(text))
        return Copies(OWN, _read(text, places, depth), lengths)


def copies_from(text: Int64, source: int, end: Int64, shortest: int, most: int, depth: int = REACH) -> Copies:
    """Copies of the text that followed the last `shortest` or more tokens of `end` in another text."""
    places, lengths = _places(text, end, shortest, most, len(text))
    return Copies(source, _read(text, places, depth), lengths)


def places_after(text: Int64, end: Int64, most: int, near: int) -> tuple[Int64, Int64]:
    """Places where the end of `end` occurs in a text, and the lengths of these matches: the longest first, among equals
    the nearest to `near`.
    """
    return _places(text, end, 1, most, near)


@relaxed
def _places(text: Int64, end: Int64, shortest: int, most: int, near: int) -> tuple[Int64, Int64]:
    """Reads the text once from its end: 2,000 tokens take two microseconds, and there is no index to keep up."""
    places, lengths, found = np.zeros(most, np.int64), np.zeros(most, np.int64), 0
    size = len(end) if most > 0 else 0
    last = end[size - 1] if size else END
    for place in range(len(text) - 1, 0, -1):
        if text[place - 1] != last or text[place] == END or last == END:
            continue
        length = 1
        while length < min(place, size, LONGEST) and text[place - 1 - length] == end[size - 1 - length] != END:
            length += 1
        if length < shortest:
            continue
        away, at = abs(place - near), found
        while at > 0 and (
            lengths[at - 1] < length or (lengths[at - 1] == length and abs(places[at - 1] - near) > away)
        ):
            if at < most:
                places[at], lengths[at] = places[at - 1], lengths[at - 1]
            at -= 1
        if at < most:
            places[at], lengths[at] = place, length
            found = min(found + 1, most)
    return places[:found], lengths[:found]


@relaxed
def _read(text: Int64, places: Int64, depth: int) -> Int64:
    """The tokens after each place, [places, depth]. At the end of the text the tokens after the place are repeated."""
    tokens = np.full((len(places), depth), END, np.int64)
    for row in range(len(places)):
        period = len(text) - places[row]
        for i in range(depth):
            tokens[row, i] = text[places[row] + i % period]
            if tokens[row, i] == END:
                break
    return tokens

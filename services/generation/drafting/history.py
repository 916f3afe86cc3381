"""Where the end of a sequence has occurred before in the sequence itself, its prompt included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

Key = TypeVar("Key")

_KEPT = 8  # most recent places of a pair of tokens, and half as many of a single one
_LONGEST = 16  # tokens of common suffix that are compared at most


@dataclass(frozen=True, slots=True)
class Match:
    """`place` is the index after an earlier occurrence; `length` the tokens that it has in common with the end."""

    place: int
    length: int


class History:
    """An index over a growing list of tokens by its pairs and its single tokens; O(1) per token added."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], list[int]] = {}
        self._singles: dict[int, list[int]] = {}
        self._indexed = 0  # places up to which occurrences are known; the end itself is never a match

    def index(self, tokens: list[int]) -> None:
        """Take in the tokens that are new; `tokens` may only have grown."""
        for place in range(max(1, self._indexed + 1), len(tokens)):
            _remember(self._singles, tokens[place - 1], place, _KEPT // 2)
            if place > 1:
                _remember(self._pairs, (tokens[place - 2], tokens[place - 1]), place, _KEPT)
        self._indexed = max(self._indexed, len(tokens) - 1)

    def matches(self, tokens: list[int], most: int) -> list[Match]:
        """Earlier occurrences of the end of `tokens`, longest first, the most recent first among equals."""
        end = len(tokens)
        places = self._pairs.get((tokens[-2], tokens[-1])) if end > 1 else None
        places = places or self._singles.get(tokens[-1], [])
        found = [Match(place, _common_suffix(tokens, place)) for place in reversed(places)]
        found.sort(key=lambda match: -match.length)
        return found[:most]


def _remember(index: dict[Key, list[int]], key: Key, place: int, most: int) -> None:
    places = index.setdefault(key, [])
    places.append(place)
    if len(places) > most:
        del places[0]


def _common_suffix(tokens: list[int], place: int) -> int:
    length, end = 0, len(tokens)
    while length < min(place, _LONGEST) and tokens[place - 1 - length] == tokens[end - 1 - length]:
        length += 1
    return length


def continuation(tokens: list[int], place: int, length: int) -> list[int]:
    """`length` tokens from `place` on; past the end of `tokens` the repetition is taken to go on."""
    period = len(tokens) - place
    return [tokens[place + i % period] for i in range(length)]

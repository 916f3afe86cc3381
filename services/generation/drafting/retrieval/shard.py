"""A shard: the tokens of some documents and the array of their sorted suffixes, mapped from disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.relaxed import relaxed
from services.generation.drafting.retrieval.backoff import Suffixes
from services.generation.drafting.retrieval.datastore_error import StoreInvalid
from services.generation.drafting.retrieval.manifest import token_dtype
from services.generation.drafting.retrieval.suffixes import Int64, Tokens, longest_end, range_of


@dataclass(frozen=True, slots=True)
class Shard:
    """Documents one after the other, each followed by a separator that is no token, so that no match and no
    continuation crosses a border.

    tokens [n] uint16 or uint32; suffixes [n] int32, positions in the order of the suffixes that begin there (Manber &
    Myers 1993), tokens compared as numbers, a suffix before its own extensions.
    """

    tokens: Tokens
    suffixes: NDArray[np.int32]
    separator: int
    _edges: NDArray[np.int64] = field(init=False, repr=False)
    """By token, the first suffix that begins with it or with a greater one; -1 until somebody has looked for it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_edges", np.full(self.separator + 2, -1, np.int64))

    @classmethod
    def open(cls, tokens: Path, suffixes: Path, separator: int) -> Shard:
        """Map both files. Raises StoreInvalid if they are not what a shard has."""
        shard = cls(_mapped(tokens), _mapped(suffixes), separator)
        if shard.tokens.dtype != token_dtype(separator) or shard.suffixes.dtype != np.int32:
            raise StoreInvalid(f"{tokens}: tokens of {shard.tokens.dtype} with suffixes of {shard.suffixes.dtype}")
        if shard.tokens.shape != shard.suffixes.shape or shard.tokens.ndim != 1:
            raise StoreInvalid(f"{suffixes}: {shard.suffixes.shape} suffixes for {shard.tokens.shape} tokens")
        return shard

    @property
    def arrays(self) -> Suffixes:
        return Suffixes(self.tokens, self.suffixes, self._edges, self.separator)

    def occurrences(self, pattern: NDArray[np.int64]) -> Int64:
        """Where `pattern`, one token or more, begins, in the order of the suffixes."""
        first, last = range_of(self.tokens, self.suffixes, self._edges, pattern)
        return self.suffixes[first:last].astype(np.int64)

    def search(self, context: Int64, ends: tuple[int, int], most: int, depth: int) -> tuple[Int64, Int64]:
        """Continuations of at most `most` occurrences of an end of `context`, longest ends first.

        Ends are ends[0] down to ends[1] tokens. Where one occurs more often than there is room for, its occurrences are
        taken at even distances in the order of the suffixes. Returns continuations [found, depth], -1 from a document's
        end on; the length of the end that each follows [found].
        """
        longest, shortest = ends
        return _search(self.tokens, self.suffixes, self._edges, context, longest, shortest, most, depth, self.separator)


def _mapped(path: Path) -> Any:
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))  # compiled code is slow to take a subclass
    except (OSError, ValueError, EOFError) as error:
        raise StoreInvalid(f"{path}: {error}; build the datastore again") from error


@relaxed
def _search(
    tokens: Tokens, suffixes: NDArray[np.int32], edges: Int64, context: Int64, longest: int, shortest: int, most: int,
    depth: int, separator: int,
) -> tuple[Int64, Int64]:  # fmt: skip
    known = 0
    while known < min(longest, context.shape[0]) and context[context.shape[0] - 1 - known] < separator:
        known += 1  # a base may have ids beyond its tokenizer's, and the first of them is the separator
    places, lengths, found = _matches(tokens, suffixes, edges, context, known, shortest, most)
    return _continuations(tokens, places[:found], depth, separator), lengths[:found]


@relaxed
def _matches(
    tokens: Tokens, suffixes: NDArray[np.int32], edges: Int64, context: Int64, longest: int, shortest: int, most: int
) -> tuple[Int64, Int64, int]:
    places, lengths, found = np.zeros(most, np.int64), np.zeros(most, np.int64), 0
    size, longer = context.shape[0], False
    for length in range(longest_end(tokens, suffixes, edges, context, longest), shortest - 1, -1):
        if found == most:
            break
        first, last = range_of(tokens, suffixes, edges, context[size - length :])
        room = min(most - found, last - first)
        for i in range(room):
            at = suffixes[first + (i * (last - first)) // room]
            if longer and at > 0 and tokens[at - 1] == context[size - length - 1]:
                continue  # an occurrence of the longer end, already taken
            places[found], lengths[found] = at + length, length
            found += 1
        longer = True
    return places, lengths, found


@relaxed
def _continuations(tokens: Tokens, places: Int64, depth: int, separator: int) -> Int64:
    out = np.full((places.shape[0], depth), -1, np.int64)
    for row in range(places.shape[0]):
        for i in range(depth):
            at = places[row] + i
            if at >= tokens.shape[0] or tokens[at] == separator:
                break
            out[row, i] = tokens[at]
    return out

"""The Jacobi window of lookahead decoding (Fu et al., ICML 2024, §3): guesses refined in parallel, and the pool of
n-grams that they yield.
"""

from __future__ import annotations

from collections.abc import Sequence

CAPACITY = 64


class JacobiWindow:
    """W columns and up to N - 1 levels. Level 0 guesses the W tokens after the root. Level l of a column guesses the
    token after its level l - 1. Each pass adds a level to every column. N levels are an n-gram; level 0 then goes.
    """

    def __init__(self, columns: int, ngram: int, start: Sequence[int]) -> None:
        self._ngram = ngram
        self._levels = [[start[-1 - i % len(start)] for i in range(columns)]]

    @property
    def rows(self) -> int:
        return sum(len(level) for level in self._levels)

    def nodes(self, root: int, first: int) -> tuple[list[int], list[int]]:
        """Tokens and parents of the window as part of a tree whose next free node is `first`.

        Level 0 is a trunk below `root`; column c's deeper levels branch from its trunk node.
        """
        columns = len(self._levels[0])
        tokens = [token for level in self._levels for token in level]
        trunk = [root, *range(first, first + columns - 1)]
        return tokens, trunk + list(range(first, first + columns * (len(self._levels) - 1)))

    def advance(self, outputs: Sequence[int]) -> list[tuple[int, ...]]:
        """Take the tokens that the deepest level's rows predict, one a column; returns the n-grams completed."""
        self._levels.append(list(outputs))
        if len(self._levels) < self._ngram:
            return []
        ngrams = [tuple(level[column] for level in self._levels) for column in range(len(outputs))]
        del self._levels[0]
        return ngrams


class NgramPool:
    """At most 64 n-grams of one length, the least recently used out."""

    def __init__(self) -> None:
        self._used: dict[tuple[int, ...], None] = {}  # the most recently used last

    def __len__(self) -> int:
        return len(self._used)

    def add(self, ngram: tuple[int, ...]) -> None:
        """Take in an n-gram, or mark it as just used."""
        self._used.pop(ngram, None)
        self._used[ngram] = None
        if len(self._used) > CAPACITY:
            del self._used[next(iter(self._used))]

    def after(self, token: int) -> list[tuple[int, ...]]:
        """N-grams that begin with a token, without that token, the last one used first."""
        return [ngram[1:] for ngram in reversed(self._used) if ngram[0] == token]

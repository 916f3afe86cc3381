"""The Jacobi window of lookahead decoding (Fu et al., ICML 2024, §3.1): W columns of guesses refined in parallel."""

from __future__ import annotations

from collections.abc import Sequence


class JacobiWindow:
    """W columns and up to N - 1 levels. Level 0 guesses the W tokens after the root; level l of column c guesses what
    follows level l - 1 of it. Each pass yields the next level of every column: N levels are an n-gram, level 0 falls
    out.
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

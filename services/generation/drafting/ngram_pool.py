"""The n-gram pool of lookahead decoding: guesses for what follows a token (Fu et al., ICML 2024, §3.2)."""

from __future__ import annotations

from collections import OrderedDict

CAPACITY = 64


class NgramPool:
    """At most `capacity` n-grams, the least recently used out. An n-gram is found by its first token.

    Each carries its source, a name that the pool hands back with it.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._used: OrderedDict[tuple[int, ...], str] = OrderedDict()
        self._by_first: dict[int, list[tuple[int, ...]]] = {}

    def __len__(self) -> int:
        return len(self._used)

    def add(self, ngram: tuple[int, ...], source: str) -> None:
        """Take in an n-gram, or mark it as just used; the first source stays."""
        if ngram in self._used:
            self._used.move_to_end(ngram)
            return
        self._used[ngram] = source
        self._by_first.setdefault(ngram[0], []).append(ngram)
        if len(self._used) > self._capacity:
            self._drop(next(iter(self._used)))

    def _drop(self, ngram: tuple[int, ...]) -> None:
        del self._used[ngram]
        siblings = self._by_first[ngram[0]]
        siblings.remove(ngram)
        if not siblings:
            del self._by_first[ngram[0]]

    def guesses(self, token: int) -> list[tuple[tuple[int, ...], str]]:
        """What may follow `token`: n-grams without their first token, the last one added first, with their sources."""
        return [(ngram[1:], self._used[ngram]) for ngram in reversed(self._by_first.get(token, ()))]

"""The n-gram pool of lookahead decoding: guesses for what follows a token (Fu et al., ICML 2024, §3.2)."""

from __future__ import annotations

from collections import OrderedDict

CAPACITY = 64


class NgramPool:
    """At most `capacity` n-grams, the least recently used out. An n-gram is found by its first token."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._used: OrderedDict[tuple[int, ...], None] = OrderedDict()
        self._by_first: dict[int, list[tuple[int, ...]]] = {}

    def __len__(self) -> int:
        return len(self._used)

    def add(self, ngram: tuple[int, ...]) -> None:
        """Take in an n-gram, or mark it as just used."""
        if ngram in self._used:
            self._used.move_to_end(ngram)
            return
        self._used[ngram] = None
        self._by_first.setdefault(ngram[0], []).append(ngram)
        if len(self._used) > self._capacity:
            self._drop(next(iter(self._used)))

    def _drop(self, ngram: tuple[int, ...]) -> None:
        del self._used[ngram]
        siblings = self._by_first[ngram[0]]
        siblings.remove(ngram)
        if not siblings:
            del self._by_first[ngram[0]]

    def guesses(self, token: int) -> list[tuple[int, ...]]:
        """What may follow `token`: n-grams without their first token, the last one added first."""
        return [ngram[1:] for ngram in reversed(self._by_first.get(token, ()))]

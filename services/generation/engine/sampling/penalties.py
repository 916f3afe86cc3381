"""Penalties on tokens that were there before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from services.generation.engine.sampling.processor import Columns, Float32, Int64, LogitsProcessor


class RepetitionPenalty(LogitsProcessor):
    """Over prompt and output (Keskar et al. 2019)."""

    idle = False

    def __init__(self, penalty: float, prompt: Sequence[int], columns: Columns) -> None:
        self._penalty, self._columns = np.float32(penalty), columns
        self._seen = _Tokens(columns.of(prompt))

    def apply(self, logits: Float32) -> None:
        values = logits[..., self._seen.ids]
        logits[..., self._seen.ids] = np.where(values > 0, values / self._penalty, values * self._penalty)

    def accept(self, token: int) -> None:
        self._seen.add(self._columns.of((token,)))


class OutputPenalties(LogitsProcessor):
    """OpenAI's frequency and presence penalty, over the output."""

    idle = False

    def __init__(self, frequency: float, presence: float, columns: Columns) -> None:
        self._frequency, self._presence, self._columns = np.float32(frequency), np.float32(presence), columns
        self._output = _Tokens()

    def apply(self, logits: Float32) -> None:
        logits[..., self._output.ids] -= self._frequency * self._output.counts + self._presence

    def accept(self, token: int) -> None:
        self._output.add(self._columns.of((token,)))


class _Tokens:
    """Distinct tokens by their first appearance, and how often each was added."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._places: dict[int, int] = {}
        self._ids, self._counts = np.empty(64, np.int64), np.empty(64, np.float32)
        self.add(tokens)

    @property
    def ids(self) -> Int64:
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> Float32:
        return self._counts[: len(self._places)]

    def add(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            place = self._places.get(token)
            if place is None:
                place = self._places[token] = len(self._places)
                if place == len(self._ids):
                    self._ids, self._counts = np.resize(self._ids, 2 * place), np.resize(self._counts, 2 * place)
                self._ids[place], self._counts[place] = token, 0
            self._counts[place] += 1

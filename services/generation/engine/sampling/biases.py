"""Changes to the logits of fixed tokens: a bias on each, and the ban on an early end."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from services.generation.engine.sampling.processor import Columns, Float32, LogitsProcessor


class LogitBias(LogitsProcessor):
    """Added to the logits of some tokens."""

    idle = False

    def __init__(self, biases: Iterable[tuple[int, float]], columns: Columns) -> None:
        found = [(column, bias) for token, bias in biases for column in columns.of((token,))]
        self._ids = np.array([column for column, _ in found], np.int64)
        self._biases = np.array([bias for _, bias in found], np.float32)

    def apply(self, logits: Float32) -> None:
        logits[..., self._ids] += self._biases

    def accept(self, token: int) -> None:
        pass


class MinTokens(LogitsProcessor):
    """No token that ends the sequence before it has `min_tokens`."""

    def __init__(self, min_tokens: int, ends: Collection[int], columns: Columns) -> None:
        self._left = min_tokens
        self._ends = np.array(columns.of(sorted(ends)), np.int64)

    @property
    def idle(self) -> bool:
        return self._left <= 0

    def apply(self, logits: Float32) -> None:
        if not self.idle:
            logits[..., self._ends] = -np.inf

    def accept(self, token: int) -> None:
        self._left -= 1

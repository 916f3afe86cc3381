"""Logits of a pass that stay in a device's memory until they are read: a row of 150,000 takes 0.6 MB."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np

from services.generation.target.arrays import Float32, Int64


class Best(NamedTuple):
    """The lowest id with the largest logit of a row, and the two largest values, with 0 for -0."""

    token: int
    best: float
    second: float


@dataclass(frozen=True, slots=True, eq=False)
class UnreadRow:
    """A row of logits. `best` is None if one of them is NaN or infinite; `read` gives all [vocab_size]."""

    best: Best | None
    read: Callable[[], Float32]


@dataclass(frozen=True, slots=True, eq=False)
class UnreadLogits:
    """Logits [rows, vocab_size] of a device's last pass, used until its next pass; `read(row)` copies one row."""

    best: Sequence[Best | None]
    read: Callable[[int], Float32]
    first: int = 0  # row of the pass

    def __len__(self) -> int:
        return len(self.best)

    @overload
    def __getitem__(self, rows: slice, /) -> UnreadLogits: ...
    @overload
    def __getitem__(self, rows: int, /) -> UnreadRow: ...
    def __getitem__(self, rows: slice | int, /) -> UnreadLogits | UnreadRow:
        if isinstance(rows, slice):
            return UnreadLogits(self.best[rows], self.read, self.first + rows.indices(len(self))[0])
        return UnreadRow(self.best[rows], lambda: self.read(self.first + rows))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Float32:
        return np.stack([self.read(self.first + row) for row in range(len(self))])

    def argmax(self, axis: int) -> Int64:
        """Along axis 1, the lowest id with the largest logit; 0 for a row with a NaN or an infinite logit."""
        assert axis == 1
        return np.array([0 if best is None else best.token for best in self.best], np.int64)


LogitRows = Float32 | UnreadLogits
"""Logits [rows, vocab_size] of a pass."""

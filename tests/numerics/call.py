"""One kernel of the canonical pass, called by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.target.arrays import Int64
from services.generation.target.kernels import compilation
from services.generation.target.kernels.records import PASS, record_of


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """Kernels write into the arrays that they are given."""

    module: str  # as `compilation.kernels` names it
    kernel: str
    operation: str  # whose fields `values` are (`records.FIELDS`); arrays stand for their addresses
    values: Mapping[str, Any]
    passed: Mapping[str, Any]  # words of the pass (`records.PASS`)
    pointed: Sequence[NDArray[Any]] = ()  # arrays whose addresses are inside of others
    members: int = 1  # of the team, which take turns here

    def record(self, kernel: int) -> Int64:
        return record_of(self.operation, kernel, self.values)

    def words(self) -> Int64:
        words = np.zeros(len(PASS), np.int64)
        for name, value in self.passed.items():
            words[PASS.index(name)] = value.ctypes.data if isinstance(value, np.ndarray) else value
        return words

    def arrays(self) -> list[NDArray[Any]]:
        """All memory that the kernel may touch, but for record and pass."""
        found = [value for values in (self.values, self.passed) for value in values.values()]
        return [*(array for array in found if isinstance(array, np.ndarray)), *self.pointed]


Run = Callable[[Sequence[Call]], None]
"""Runs calls one after another."""


def run_here(calls: Sequence[Call]) -> None:
    """In this process, by the kernels for this CPU."""
    for call in calls:
        kernel = compilation.kernels(call.module)[call.kernel]
        record, words = call.record(kernel), call.words()
        for member in range(call.members):
            compilation.call(kernel, record.ctypes.data, words.ctypes.data, member, call.members)

"""Memory for logits, taken again: fresh pages cost more than the output layer."""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]


class ReusedMemory:
    """Hands out arrays; one that nobody refers to any more is handed out again. Used by one thread."""

    def __init__(self) -> None:
        self._memory = [np.empty(0, np.float32)]

    def take(self, rows: int, size: int) -> Float32:
        """An array [rows, size] of anything."""
        free = 2  # references of a list's item: the list's own and the one that asks
        number = next((n for n in range(len(self._memory)) if sys.getrefcount(self._memory[n]) <= free), None)
        if number is None:
            self._memory.append(np.empty(0, np.float32))
            number = len(self._memory) - 1
        if self._memory[number].size < rows * size:
            self._memory[number] = np.empty(rows * size, np.float32)
        return self._memory[number][: rows * size].reshape(rows, size)

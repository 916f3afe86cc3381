"""Memory of this process as a file that another machine's process can go on with.

Records hold addresses. The image is a copy of all arrays that they lead to, at places of its own, and a list of the
words that hold an address, so that a reader can put there where it has laid the image.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.target.arrays import Bytes, Int64

_PAGE = 4096
_BEHIND = 1 << 16  # zero bytes after each run of memory: kernels may fetch ahead


class Image:
    """A copy of arrays. `relocations` [n, 2]: a word's place in it, and the place that the word shall point to; -1 - i
    stands for kernel number i.
    """

    def __init__(
        self, arrays: Sequence[NDArray[Any]], pointing: Sequence[Int64], kernels: Mapping[int, int] | None = None
    ) -> None:
        """`pointing`: those arrays, of `arrays` too, whose words are addresses where they could be one. `kernels`:
        numbers of kernels by their addresses in this process.

        Sizes and counts are far below any address, so that no other word is mistaken for one.
        """
        self._kernels = kernels or {}
        self._runs = _runs([array for array in [*arrays, *pointing] if array.nbytes])
        self._starts = [start for start, _ in self._runs]
        self._places: list[int] = []
        size = 0
        for start, end in self._runs:
            place = size + start % _PAGE  # as aligned as here
            self._places.append(place)
            size = -(-(place + end - start + _BEHIND) // _PAGE) * _PAGE
        self.memory = np.zeros(size, np.uint8)
        for place, (start, end) in zip(self._places, self._runs, strict=True):
            self.memory[place : place + end - start] = np.frombuffer(ctypes.string_at(start, end - start), np.uint8)
        self.relocations = np.array(
            [pair for words in pointing if words.size for pair in self._pairs(words)], np.int64
        ).reshape(-1, 2)

    def place_of(self, array: NDArray[Any]) -> int:
        place = self._place(array.ctypes.data)
        assert place is not None
        return place

    def give_back(self, memory: Bytes) -> None:
        """Put what another process made of the image into the arrays; addresses become this process's again."""
        assert len(memory) == len(self.memory)
        changed = memory.copy()
        for place, _ in self.relocations:
            changed[place : place + 8] = self.memory[place : place + 8]
        for place, (start, end) in zip(self._places, self._runs, strict=True):
            ctypes.memmove(start, changed[place : place + end - start].tobytes(), end - start)

    def _pairs(self, words: Int64) -> list[tuple[int, int]]:
        flat = words.reshape(-1)
        found = ((self._target(int(word)), 8 * number) for number, word in enumerate(flat))
        start = self.place_of(words)
        return [(start + offset, target) for target, offset in found if target is not None]

    def _target(self, word: int) -> int | None:
        return -1 - self._kernels[word] if word in self._kernels else self._place(word)

    def _place(self, address: int) -> int | None:
        number = bisect_right(self._starts, address) - 1
        if number < 0 or address >= self._runs[number][1]:
            return None
        return self._places[number] + address - self._starts[number]


def _runs(arrays: Sequence[NDArray[Any]]) -> list[tuple[int, int]]:
    """Where the arrays' memory begins and ends, in order; arrays that share memory become one."""
    runs: list[tuple[int, int]] = []
    for array in sorted(arrays, key=lambda array: array.ctypes.data):
        start, end = np.lib.array_utils.byte_bounds(array)
        if runs and start <= runs[-1][1]:
            runs[-1] = runs[-1][0], max(end, runs[-1][1])
        else:
            runs.append((start, end))
    return runs

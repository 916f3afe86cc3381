"""Memory on huge pages, which a pass reads all weights from, and memory for logits that is taken again."""

from __future__ import annotations

import mmap
import sys
import threading

import numpy as np
from numpy.typing import NDArray

from services.generation.target.canonical.kernels.storages import SLACK, padded

Bytes = NDArray[np.uint8]
Float32 = NDArray[np.float32]
_PAGE = 1 << 21
_CHUNK = 16 * _PAGE  # what small pieces are cut from: a page of its own would leave most of it empty
_BORDER = 4096  # bytes to which pieces are aligned


class _Chunk:
    """A mapping that pieces are cut from, one after another; it goes when all of them have gone."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._used = 0
        self._lock = threading.Lock()

    def piece(self, count: int) -> Bytes:
        size = padded(count, _BORDER)
        with self._lock:
            if self._used + size > len(self._memory):
                self._memory, self._used = _mapped(_CHUNK), 0
            first, self._used = self._used, self._used + size
            return self._memory[first : first + count]


_chunk = _Chunk()


def on_huge_pages(count: int) -> Bytes:
    """`count` zero bytes; SLACK more behind them may be fetched."""
    return _mapped(count) if count > _CHUNK // 4 else _chunk.piece(count)


def _mapped(count: int) -> Bytes:
    size = padded(count + SLACK, _PAGE) + _PAGE
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # pages shared with nobody can be huge
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, np.uint8)
    start = -array.ctypes.data % _PAGE
    return array[start : start + count]


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

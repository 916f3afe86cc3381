"""Memory on pages of 2 MiB, where the system gives them: a pass reads all weights, and small pages cost it a third."""

from __future__ import annotations

import mmap
import threading

import numpy as np
from numpy.typing import NDArray

from services.generation.target.canonical.kernels.storages import SLACK, padded

Bytes = NDArray[np.uint8]
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

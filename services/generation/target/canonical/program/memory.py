"""Memory on huge pages, which a pass reads all weights from, and memory for logits that is taken again."""

from __future__ import annotations

import mmap
import threading
import weakref

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


class _Lease:
    """What arrays over a piece of memory keep alive; the memory is given back when the last of them has gone."""

    def __init__(self, memory: Float32, rows: int, size: int) -> None:
        self.__array_interface__ = {**memory[: rows * size].__array_interface__, "shape": (rows, size)}


class ReusedMemory:
    """Hands out arrays, and their memory again once they, and all views of them, have gone. Used by one thread.

    Each array owns a lease; the end of its life says that the memory is free, however an interpreter counts.
    """

    def __init__(self) -> None:
        self._free: list[Float32] = []
        self._lent: dict[int, Float32] = {}

    def take(self, rows: int, size: int) -> Float32:
        """An array [rows, size] of anything."""
        memory = self._free.pop() if self._free else np.empty(0, np.float32)
        if memory.size < rows * size:
            memory = np.empty(rows * size, np.float32)
        lease = _Lease(memory, rows, size)
        self._lent[id(memory)] = memory
        weakref.finalize(lease, self._take_back, id(memory)).atexit = False
        return np.asarray(lease)

    def _take_back(self, lent: int) -> None:
        self._free.append(self._lent.pop(lent))

"""Token embeddings by a kernel of their own, beside any pass."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from services.generation.target.canonical.kernels import compilation
from services.generation.target.canonical.kernels.records import KERNEL, PASS
from services.generation.target.canonical.kernels.storages import PANEL, padded
from services.generation.target.canonical.program.matrices import Matrix
from services.generation.target.canonical.program.matrix_records import embedding_record, give
from services.generation.target.canonical.program.memory import on_huge_pages

Float32 = NDArray[np.float32]

_SCRATCH = 1 << 16  # bytes: a block of a panel, widened


class EmbeddingTable:
    """The rows of a packed matrix [tokens, size]. Used by one thread."""

    def __init__(self, matrix: Matrix, size: int) -> None:
        self._size, self._scratch = size, on_huge_pages(_SCRATCH)
        own = {"scratch": self._scratch, "scratch_size": 0}
        self._record = embedding_record(matrix, np.empty((1, 1), np.float32), size, own)
        self._words = np.zeros(len(PASS), np.int64)
        self._kept = matrix

    def rows(self, tokens: NDArray[np.int64]) -> Float32:
        """[n] ids to [n, size]."""
        tokens = np.ascontiguousarray(tokens, np.int64)
        out = np.empty((len(tokens), padded(self._size, PANEL)), np.float32)
        give(self._record, "embed", "x", out)
        self._words[_ROWS], self._words[_TOKENS] = len(tokens), tokens.ctypes.data
        compilation.call(int(self._record[KERNEL]), self._record.ctypes.data, self._words.ctypes.data, 0, 1)
        return out[:, : self._size]


_ROWS, _TOKENS = PASS.index("rows"), PASS.index("tokens")

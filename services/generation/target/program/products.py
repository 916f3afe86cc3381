"""Rows of packed matrices outside of passes: embeddings and products, for drafters."""

from __future__ import annotations

import numpy as np

from services.generation.target.arrays import Float32, Int64
from services.generation.target.kernels import compilation
from services.generation.target.kernels.linear.linear import scratch_bytes
from services.generation.target.kernels.records import KERNEL, PASS, bind
from services.generation.target.kernels.storages import PANEL, padded
from services.generation.target.program.buffers import on_huge_pages
from services.generation.target.program.matrices import Matrix, embedding_record, linear_record
from services.generation.target.program.operations import NOWHERE
from services.generation.target.program.team import Passes

_SCRATCH = 1 << 16  # bytes: a block of a panel, widened
_ROWS, _TOKENS = PASS.index("rows"), PASS.index("tokens")
_PRODUCT_ROWS = 256  # of one product


class EmbeddingTable:
    """The rows of a packed matrix [tokens, size]. Used by one thread."""

    def __init__(self, matrix: Matrix, size: int) -> None:
        self._size, scratch = size, {"scratch": on_huge_pages(_SCRATCH), "scratch_size": 0}
        self._record = embedding_record(matrix, NOWHERE, size, scratch)
        self._words = np.zeros(len(PASS), np.int64)
        self._keeps_alive = matrix, scratch

    def rows(self, tokens: Int64) -> Float32:
        """[n] ids to [n, size]."""
        tokens = np.ascontiguousarray(tokens, np.int64)
        out = np.empty((len(tokens), padded(self._size, PANEL)), np.float32)
        bind(self._record, "embed", "x", out)
        self._words[_ROWS], self._words[_TOKENS] = len(tokens), tokens.ctypes.data
        compilation.call(int(self._record[KERNEL]), self._record.ctypes.data, self._words.ctypes.data, 0, 1)
        return out[:, : self._size]


class Product:
    """Products with a packed matrix [outputs, inputs] outside of any program. Used by one thread."""

    def __init__(self, matrix: Matrix, outputs: int, threads: int, arithmetic: str = "float32") -> None:
        inputs = matrix.weights.inputs
        scratch_size = padded(scratch_bytes(inputs), 4096)
        self._x = on_huge_pages(4 * _PRODUCT_ROWS * padded(inputs, PANEL)).view(np.float32).reshape(_PRODUCT_ROWS, -1)
        scratch = {"scratch": on_huge_pages(scratch_size * threads), "scratch_size": scratch_size}
        self._record = linear_record(matrix, scratch, arithmetic, x=self._x, y=NOWHERE)
        self._keeps_alive, self._outputs, self._passes = (matrix, scratch), outputs, Passes(threads)

    def rows(self, x: Float32) -> Float32:
        """[n, inputs] to [n, outputs]."""
        y = np.empty((len(x), padded(self._outputs, PANEL)), np.float32)
        for first in range(0, len(x), _PRODUCT_ROWS):
            some = x[first : first + _PRODUCT_ROWS]
            self._x[: len(some), : some.shape[1]] = some
            bind(self._record, "linear", "y", y[first:])
            self._passes.run_plain(self._record[None], len(some))
        return y[:, : self._outputs]

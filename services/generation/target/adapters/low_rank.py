"""The low-rank updates of all loaded adapters to one linear layer, computed on the CPU row by row.

A row's update is one fixed program over that row and the adapter that it wears: every sum runs in the order of its
terms, so no neighbour, no other adapter and no number of rows can change a bit of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from services.generation.target.adapters.adapter import Adapter, LowRank
from services.generation.target.adapters.pieces import Piece, Pieces
from services.generation.target.kernels import Float32, Int32, kernel

KERNEL = "kolm-low-rank-v1"
_FEW = 4  # terms that a loop adds at a time, one after another

Int64 = NDArray[np.int64]


class LowRankSum:
    """`y += scale * ((x A^T) B^T)` for each row by the adapter that it wears (Hu et al. 2021).

    One for each fused linear layer (q, k and v are one, gate and up are one). A row that wears no adapter, or one
    without an update here, is not touched.
    """

    def __init__(self, adapters: Sequence[Adapter], layer: int, pieces: Sequence[Piece]) -> None:
        stack = _Stack()
        for adapter in adapters:
            worn = [(piece.first, adapter.updates.get((layer, piece.module))) for piece in pieces]
            stack.append([(first, update) for first, update in worn if update is not None])
        self._spans = np.array(stack.spans, np.int64).reshape(-1, 4)
        self._parts = np.array(stack.parts, np.int64).reshape(-1, 5)
        self._scales = np.array(stack.scales, np.float32)
        self._downs, self._ups = np.concatenate(stack.downs), np.concatenate(stack.ups)

    def add(self, x: Float32, wearing: Int32, y: Float32) -> None:
        """Add to y [rows, out] the updates for x [rows, in], in place; wearing [rows], -1 for none."""
        add_low_rank(x, wearing, self._spans, self._parts, self._scales, self._downs, self._ups, y)


class _Stack:
    """The tables that `add_low_rank` reads, adapter by adapter."""

    def __init__(self) -> None:
        self.spans: list[tuple[int, int, int, int]] = []
        self.parts: list[tuple[int, int, int, int, int]] = []
        self.scales: list[float] = []
        self.downs = [np.empty(0, np.float32)]
        self.ups = [np.empty(0, np.float32)]

    def append(self, updates: Sequence[tuple[int, LowRank]]) -> None:
        """One adapter's updates here, each with the column that its output begins at."""
        first_part, rank = len(self.parts), 0
        for first, update in updates:
            up_at = sum(map(len, self.ups))
            self.parts.append((rank, rank + update.rank, first, len(update.up), up_at))
            self.scales.append(update.scale)
            self.ups.append(_columns(update.up))
            rank += update.rank
        self.spans.append((sum(map(len, self.downs)), rank, first_part, len(self.parts)))
        if updates:
            self.downs.append(_columns(torch.cat([update.down for _, update in updates])))


def _columns(matrix: torch.Tensor) -> Float32:
    """The transpose, flat: what one input contributes to all outputs lies side by side."""
    flat: Float32 = matrix.T.contiguous().numpy().reshape(-1)
    return flat


@dataclass(frozen=True, slots=True)
class LayerUpdates:
    """The updates to one decoder layer."""

    qkv: LowRankSum
    output: LowRankSum
    gate_up: LowRankSum
    down: LowRankSum

    @classmethod
    def of(cls, adapters: Sequence[Adapter], layer: int, pieces: Pieces) -> LayerUpdates:
        return cls(
            qkv=LowRankSum(adapters, layer, pieces.qkv),
            output=LowRankSum(adapters, layer, pieces.output),
            gate_up=LowRankSum(adapters, layer, pieces.gate_up),
            down=LowRankSum(adapters, layer, pieces.down),
        )


@kernel
def add_low_rank(
    x: Float32,
    wearing: Int32,
    spans: Int64,
    parts: Int64,
    scales: Float32,
    downs: Float32,
    ups: Float32,
    y: Float32,
) -> None:
    """The updates of all rows.

    x [rows, in], wearing [rows], y [rows, out]. spans [adapters, 4]: where the adapter's A lies in `downs`, as
    [in, total rank], that rank, its first part and the one after its last. parts [parts, 5]: its first inner value and
    the one after its last, its first output, their number, and where its B lies in `ups`, as [rank, outputs].
    """
    most = 0
    for a in range(spans.shape[0]):
        most = max(most, spans[a, 1])
    inner, update = np.empty(most, np.float32), np.empty(y.shape[1], np.float32)
    for r in range(x.shape[0]):
        a = wearing[r]
        if a < 0 or spans[a, 1] == 0:
            continue
        rank = spans[a, 1]
        down = downs[spans[a, 0] : spans[a, 0] + x.shape[1] * rank].reshape(x.shape[1], rank)
        _product(x[r], down, inner[:rank])
        for p in range(spans[a, 2], spans[a, 3]):
            low, high, first, size = parts[p, 0], parts[p, 1], parts[p, 2], parts[p, 3]
            up = ups[parts[p, 4] : parts[p, 4] + (high - low) * size].reshape(high - low, size)
            _product(inner[low:high], up, update[:size])
            for i in range(size):
                y[r, first + i] += scales[p] * update[i]


@kernel
def _product(row: Float32, matrix: Float32, out: Float32) -> None:
    """out[j] = sum over i of row[i] * matrix[i, j], terms in the order of i."""
    out[:] = np.float32(0.0)
    whole = row.shape[0] - row.shape[0] % _FEW
    for i in range(0, whole, _FEW):
        a, b, c, d = row[i], row[i + 1], row[i + 2], row[i + 3]
        for j in range(out.shape[0]):
            partial = (out[j] + a * matrix[i, j]) + b * matrix[i + 1, j]
            out[j] = (partial + c * matrix[i + 2, j]) + d * matrix[i + 3, j]
    for i in range(whole, row.shape[0]):
        for j in range(out.shape[0]):
            out[j] = out[j] + row[i] * matrix[i, j]

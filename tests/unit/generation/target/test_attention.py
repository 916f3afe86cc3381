"""The attention kernel adds in the order that it says, bit for bit, whatever vectors the machine has."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray

from services.generation.target.attention import attend
from services.generation.target.kernels import BLOCK, LANES, exp, fma

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]


@njit
def _row(query: Float32, keys: Float32, values: Float32, first: int, scale: np.float32) -> Float32:
    """One head over its visible keys [n, dim], the first of which is at position `first`: one term after the other."""
    count, dim = keys.shape
    scores, sums, mixed = np.zeros(count, np.float32), np.zeros(LANES, np.float32), np.zeros(dim, np.float32)
    for j in range(count):
        for i in range(dim):
            scores[j] = fma(query[i], keys[j, i], scores[j])
    shift = -scores.max() * scale
    for j in range(count):
        weight = exp(fma(scores[j], scale, shift))
        sums[(first + j) % LANES] += weight
        for i in range(dim):
            mixed[i] = fma(weight, values[j, i], mixed[i])
    total = np.float32(0.0)
    for lane in range(LANES):
        total += sums[lane]
    return mixed / total


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(8, 4, 32), (9, 3, 48), (4, 4, 64), (2, 1, 20), (4, 2, 112)])
@pytest.mark.parametrize(("length", "window"), [(0, 0), (77, 0), (200, 33), (BLOCK - 2, 64)])
def test_every_row_is_the_straight_line_program_over_its_own_history(
    heads: int, kv_heads: int, dim: int, length: int, window: int
) -> None:
    rng = np.random.default_rng([heads, dim, length])
    nodes, sequences = 5, 2
    parents = [-1, 0, 0, 1, 3]
    depths = [0, 1, 1, 2, 3]
    per_sequence = (length + nodes + BLOCK - 1) // BLOCK
    tables = rng.permutation(sequences * per_sequence).astype(np.int32).reshape(sequences, per_sequence)
    keys = rng.standard_normal((sequences * per_sequence, kv_heads, dim, BLOCK), np.float32)
    values = rng.standard_normal((sequences * per_sequence, kv_heads, BLOCK, dim), np.float32)
    queries = rng.standard_normal((sequences * nodes, heads + 2 * kv_heads, dim), np.float32)
    scale = np.float32(dim**-0.5)

    def slot(sequence: int, place: int) -> int:
        return int(tables[sequence, place // BLOCK]) * BLOCK + place % BLOCK

    histories = []
    contiguous, branches = np.zeros(sequences * nodes, np.int32), []
    for r in range(sequences * nodes):
        sequence, node = divmod(r, nodes)
        path = []
        while node >= 0:
            path.append(slot(sequence, length + node))
            node = parents[node]
        straight = r % nodes < 2
        contiguous[r] = length + (r % nodes + 1 if straight else 1)
        branches.append([] if straight else path[::-1][1:])
        histories.append([slot(sequence, place) for place in range(length)] + path[::-1])
    starts = np.cumsum([0, *map(len, branches)]).astype(np.int32)
    out = np.empty((sequences * nodes, heads, dim), np.float32)

    attend(
        queries, heads, keys, values, tables, np.repeat(np.arange(sequences, dtype=np.int32), nodes),
        np.tile(np.array(depths, np.int32), sequences) + np.int32(length), contiguous, starts,
        np.array([slot for branch in branches for slot in branch], np.int32), window, scale, out,
    )  # fmt: skip

    for r, history in enumerate(histories):
        first = max(0, len(history) - window) if window else 0
        seen = np.array(history[first:])
        for head in range(heads):
            kv = head * kv_heads // heads
            expected = _row(
                queries[r, head], np.ascontiguousarray(keys[seen // BLOCK, kv, :, seen % BLOCK]),
                np.ascontiguousarray(values[seen // BLOCK, kv, seen % BLOCK]), first, scale,
            )  # fmt: skip
            assert out[r, head].tobytes() == expected.tobytes(), (r, head)

"""The canonical kernels of the CPU target: everything of a pass that is not a linear layer.

A kernel computes each row by one fixed program over that row's own inputs: every sum has one order, whatever stands
beside the row. LLVM may vectorise these loops but, without fast-math, it may neither reorder nor fuse an operation, so
the bits of a row follow from IEEE 754 alone. Sums over many terms run in `LANES` interleaved partial sums, which is what
lets them use vector registers without leaving the program's order to the compiler.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]

BLOCK = 64  # tokens in a block of the key/value cache
TILE = 8  # rows of one sequence that attention takes through the cache together
LANES = 16  # partial sums of a reduction; float32 values in the widest vector register of x86-64

_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)  # ln 2 split in two, so that x - n ln 2 keeps its low bits (Cody and Waite)
_LN2_LOW = np.float32(-2.12194440e-4)
_ROUND = np.float32(12582912.0)  # 1.5 * 2**23: adding and subtracting it rounds to the nearest integer
_LOWEST = np.float32(-87.0)  # exp below this is subnormal; it is clamped, far under anything a softmax can see
_HIGHEST = np.float32(88.0)


def kernel(function: Any) -> Any:
    """Compile for this machine, without the GIL, with the result kept on disk beside the module."""
    return njit(nogil=True, cache=True, fastmath=False, error_model="numpy")(function)


@kernel
def _exp(values: Float32, bits: Int32) -> None:
    """`values = exp(values)` in place by the polynomial of Cephes' expf; `bits` is scratch of at least that length.

    A library's exp may use other code for the last few elements of an array than for the rest; this one cannot.
    """
    powers = bits.view(np.float32)
    for j in range(values.shape[0]):
        x = min(max(values[j], _LOWEST), _HIGHEST)
        n = (x * _LOG2_E + _ROUND) - _ROUND
        r = (x - n * _LN2_HIGH) - n * _LN2_LOW
        p = np.float32(1.9875691500e-4)
        p = p * r + np.float32(1.3981999507e-3)
        p = p * r + np.float32(8.3334519073e-3)
        p = p * r + np.float32(4.1665795894e-2)
        p = p * r + np.float32(1.6666665459e-1)
        p = p * r + np.float32(5.0000001201e-1)
        values[j] = (p * r) * r + r + np.float32(1.0)
        bits[j] = (np.int32(n) + np.int32(127)) << np.int32(23)
    for j in range(values.shape[0]):
        values[j] = values[j] * powers[j]


@kernel
def _lane_sum(lanes: Float32) -> np.float32:
    total = np.float32(0.0)
    for lane in range(LANES):
        total += lanes[lane]
    return total


@kernel
def _inverse_rms(row: Float32, epsilon: np.float32, lanes: Float32) -> np.float32:
    size = row.shape[0]
    whole = size - size % LANES
    lanes[:] = np.float32(0.0)
    for start in range(0, whole, LANES):
        for lane in range(LANES):
            lanes[lane] += row[start + lane] * row[start + lane]
    for i in range(whole, size):
        lanes[i - whole] += row[i] * row[i]
    mean = _lane_sum(lanes) / np.float32(size)
    return np.float32(1.0) / np.float32(math.sqrt(mean + epsilon))


@kernel
def rms_norm(hidden: Float32, weight: Float32, epsilon: np.float32, out: Float32) -> None:
    """`out[r] = hidden[r] / rms(hidden[r]) * weight`; hidden, out [rows, size], weight [size] (Zhang & Sennrich 2019)."""
    lanes = np.empty(LANES, np.float32)
    for r in range(hidden.shape[0]):
        inverse = _inverse_rms(hidden[r], epsilon, lanes)
        for i in range(hidden.shape[1]):
            out[r, i] = (hidden[r, i] * inverse) * weight[i]


@kernel
def add_rms_norm(hidden: Float32, update: Float32, weight: Float32, epsilon: np.float32, out: Float32) -> None:
    """`hidden += update`, the residual stream, then `rms_norm` of it into `out`; all [rows, size]."""
    for r in range(hidden.shape[0]):
        for i in range(hidden.shape[1]):
            hidden[r, i] += update[r, i]
    rms_norm(hidden, weight, epsilon, out)


@kernel
def silu_multiply(gate_up: Float32, out: Float32) -> None:
    """`out = silu(gate) * up` where gate_up [rows, 2 * size] holds gate, then up, in each row (SwiGLU, Shazeer 2020)."""
    size = out.shape[1]
    scratch = np.empty(size, np.float32)
    bits = np.empty(size, np.int32)
    for r in range(out.shape[0]):
        for i in range(size):
            scratch[i] = -gate_up[r, i]
        _exp(scratch, bits)
        for i in range(size):
            out[r, i] = (gate_up[r, i] / (np.float32(1.0) + scratch[i])) * gate_up[r, size + i]


@kernel
def _normalise(head: Float32, weight: Float32, epsilon: np.float32, lanes: Float32) -> None:
    inverse = _inverse_rms(head, epsilon, lanes)
    for i in range(head.shape[0]):
        head[i] = (head[i] * inverse) * weight[i]


@kernel
def _rotate(head: Float32, cos: Float32, sin: Float32) -> None:
    half = head.shape[0] // 2
    for i in range(half):
        low, high = head[i], head[i + half]
        head[i] = low * cos[i] - high * sin[i]
        head[i + half] = high * cos[i] + low * sin[i]


@kernel
def rotate_and_store(
    qkv: Float32,
    heads: int,
    positions: Int32,
    slots: Int32,
    cos: Float32,
    sin: Float32,
    head_norms: Float32,
    epsilon: np.float32,
    keys: Float32,
    values: Float32,
) -> None:
    """Rotate queries and keys by position, in place (RoPE, Su et al. 2021), and store keys and values in the cache.

    qkv [rows, heads + 2 kv_heads, dim]; cos, sin [context, dim / 2]; head_norms [2, dim] are the query and key norms of
    Qwen3, or [0, dim] without them; keys [blocks, kv_heads, dim, BLOCK]; values [blocks, kv_heads, BLOCK, dim].
    """
    kv_heads, dim = values.shape[1], values.shape[3]
    lanes = np.empty(LANES, np.float32)
    for r in range(qkv.shape[0]):
        position, block, offset = positions[r], slots[r] // BLOCK, slots[r] % BLOCK
        for h in range(heads + kv_heads):
            if head_norms.shape[0]:
                _normalise(qkv[r, h], head_norms[0 if h < heads else 1], epsilon, lanes)
            _rotate(qkv[r, h], cos[position], sin[position])
        for h in range(kv_heads):
            for i in range(dim):
                keys[block, h, i, offset] = qkv[r, heads + h, i]
                values[block, h, offset, i] = qkv[r, heads + kv_heads + h, i]


@kernel
def _score_block(
    queries: Float32, r: int, head: int, keys: Float32, block: int, kv: int, scores: Float32, line: int, to: int
) -> None:
    """scores[line, to, j] = sum over i of queries[r, head, i] * keys[block, kv, i, j], terms in the order of i."""
    dim = keys.shape[2]
    for j in range(BLOCK):
        scores[line, to, j] = np.float32(0.0)
    for i in range(0, dim - dim % 4, 4):
        q0, q1 = queries[r, head, i], queries[r, head, i + 1]
        q2, q3 = queries[r, head, i + 2], queries[r, head, i + 3]
        for j in range(BLOCK):
            partial = (scores[line, to, j] + q0 * keys[block, kv, i, j]) + q1 * keys[block, kv, i + 1, j]
            scores[line, to, j] = (partial + q2 * keys[block, kv, i + 2, j]) + q3 * keys[block, kv, i + 3, j]
    for i in range(dim - dim % 4, dim):
        for j in range(BLOCK):
            scores[line, to, j] = scores[line, to, j] + queries[r, head, i] * keys[block, kv, i, j]


@kernel
def _score_slot(queries: Float32, r: int, head: int, keys: Float32, slot: int, kv: int) -> np.float32:
    """The score of one cache slot, by the same additions as `_score_block` makes for each of its columns."""
    total = np.float32(0.0)
    for i in range(keys.shape[2]):
        total = total + queries[r, head, i] * keys[slot // BLOCK, kv, i, slot % BLOCK]
    return total


@kernel
def _largest(scores: Float32, lanes: Float32) -> np.float32:
    """The maximum; it has no rounding, so its order is free."""
    lanes[:] = np.float32(-np.inf)
    whole = scores.shape[0] - scores.shape[0] % LANES
    for start in range(0, whole, LANES):
        for lane in range(LANES):
            value = scores[start + lane]
            lanes[lane] = value if value > lanes[lane] else lanes[lane]
    for j in range(whole, scores.shape[0]):
        lanes[0] = max(lanes[0], scores[j])
    largest = lanes[0]
    for lane in range(1, LANES):
        largest = max(largest, lanes[lane])
    return largest


@kernel
def _softmax(scores: Float32, lane_of_first: int, bits: Int32, lanes: Float32, scale: np.float32) -> np.float32:
    """scores = exp(scale * score - the largest of them); returns their sum, score j in lane (lane_of_first + j) % LANES."""
    count = scores.shape[0]
    for j in range(count):
        scores[j] = scores[j] * scale
    largest = _largest(scores, lanes)
    for j in range(count):
        scores[j] = scores[j] - largest
    _exp(scores, bits)
    lanes[:] = np.float32(0.0)
    head = min(count, (LANES - lane_of_first) % LANES)
    whole = head + (count - head) - (count - head) % LANES
    for j in range(head):
        lanes[lane_of_first + j] += scores[j]
    for start in range(head, whole, LANES):
        for lane in range(LANES):
            lanes[lane] += scores[start + lane]
    for j in range(whole, count):
        lanes[j - whole] += scores[j]
    return _lane_sum(lanes)


@kernel
def _accumulate_block(
    weights: Float32, line: int, at: int, values: Float32, block: int, kv: int, first: int, last: int, mixed: Float32
) -> None:
    """mixed[line] += sum over j in [first, last) of weights[line, at + j] * values[block, kv, j], in the order of j."""
    dim = mixed.shape[1]
    j = first
    while j + 4 <= last:
        w0, w1 = weights[line, at + j], weights[line, at + j + 1]
        w2, w3 = weights[line, at + j + 2], weights[line, at + j + 3]
        for i in range(dim):
            partial = (mixed[line, i] + w0 * values[block, kv, j, i]) + w1 * values[block, kv, j + 1, i]
            mixed[line, i] = (partial + w2 * values[block, kv, j + 2, i]) + w3 * values[block, kv, j + 3, i]
        j += 4
    while j < last:
        w0 = weights[line, at + j]
        for i in range(dim):
            mixed[line, i] = mixed[line, i] + w0 * values[block, kv, j, i]
        j += 1


@kernel
def attend(
    queries: Float32,
    heads: int,
    keys: Float32,
    values: Float32,
    tables: Int32,
    sequences: Int32,
    positions: Int32,
    contiguous: Int32,
    branch_starts: Int32,
    branches: Int32,
    window: int,
    scale: np.float32,
    out: Float32,
) -> None:
    """Attention of all rows, each over exactly the keys of its own history, in order of position.

    A row sees the first `contiguous[r]` slots of its sequence (through `tables[sequences[r]]`, its block table), then the
    pool slots `branches[branch_starts[r]:branch_starts[r + 1]]`: its ancestors in the token tree that do not lie in one
    run with the committed tokens, itself last. Slot and branch keys go through the same additions in the same order, so a
    row in a tree gets the bits that it would get if its path were the sequence. `window` > 0 hides keys that many
    positions back. queries [rows, heads + 2 kv_heads, dim] as `rotate_and_store` leaves them; out [rows, heads, dim].

    Neighbouring rows of one sequence go through the cache together, a block of keys at a time (`TILE` rows), because the
    cache, not arithmetic, limits attention; which rows share a tile changes when a row's sums are made, not their order.
    """
    kv_heads, dim = values.shape[1], values.shape[3]
    group = heads // kv_heads
    blocks = tables.shape[1] + 1 + branches.shape[0] // BLOCK
    by_block = np.empty((TILE * group, blocks, BLOCK), np.float32)
    scores = by_block.reshape(TILE * group, blocks * BLOCK)
    bits = np.empty(blocks * BLOCK, np.int32)
    lanes = np.empty(LANES, np.float32)
    mixed = np.empty((TILE * group, dim), np.float32)
    totals = np.empty(TILE * group, np.float32)
    firsts = np.empty(TILE, np.int64)
    row, rows = 0, queries.shape[0]
    while row < rows:
        sequence, tile = sequences[row], 1
        while tile < TILE and row + tile < rows and sequences[row + tile] == sequence:
            tile += 1
        first_block, last_block = blocks, 0
        for t in range(tile):
            firsts[t] = max(0, positions[row + t] + 1 - window) if window > 0 else 0
            first_block = min(first_block, firsts[t] // BLOCK)
            last_block = max(last_block, (contiguous[row + t] + BLOCK - 1) // BLOCK)
        for kv in range(kv_heads):
            for b in range(first_block, last_block):
                for t in range(tile):
                    if b * BLOCK < contiguous[row + t] and (b + 1) * BLOCK > firsts[t]:
                        for g in range(group):
                            _score_block(
                                queries, row + t, kv * group + g, keys, tables[sequence, b], kv, by_block, t * group + g, b
                            )
            for t in range(tile):
                run, branch = contiguous[row + t], branch_starts[row + t]
                end = run + branch_starts[row + t + 1] - branch
                for g in range(group):
                    line = t * group + g
                    for e in range(run, end):
                        slot = branches[branch + e - run]
                        scores[line, e] = _score_slot(queries, row + t, kv * group + g, keys, slot, kv)
                    totals[line] = _softmax(scores[line, firsts[t] : end], firsts[t] % LANES, bits, lanes, scale)
            mixed[:] = np.float32(0.0)
            for b in range(first_block, last_block):
                for t in range(tile):
                    low = max(firsts[t] - b * BLOCK, 0)
                    high = min(contiguous[row + t] - b * BLOCK, BLOCK)
                    for g in range(group):
                        _accumulate_block(
                            scores, t * group + g, b * BLOCK, values, tables[sequence, b], kv, low, high, mixed
                        )
            for t in range(tile):
                run, branch = contiguous[row + t], branch_starts[row + t]
                end = run + branch_starts[row + t + 1] - branch
                for g in range(group):
                    line = t * group + g
                    for e in range(max(run, firsts[t]), end):
                        slot = branches[branch + e - run]
                        offset = slot % BLOCK
                        _accumulate_block(scores, line, e - offset, values, slot // BLOCK, kv, offset, offset + 1, mixed)
                    for i in range(dim):
                        out[row + t, kv * group + g, i] = mixed[line, i] / totals[line]
        row += tile


@kernel
def move_slots(keys: Float32, values: Float32, sources: Int32, targets: Int32) -> None:
    """Copy cache slots in every layer; keys [layers, blocks, kv_heads, dim, BLOCK]. Targets never precede a later source."""
    for layer in range(keys.shape[0]):
        for n in range(sources.shape[0]):
            a, i, b, j = sources[n] // BLOCK, sources[n] % BLOCK, targets[n] // BLOCK, targets[n] % BLOCK
            keys[layer, b, :, :, j] = keys[layer, a, :, :, i]
            values[layer, b, :, j, :] = values[layer, a, :, i, :]

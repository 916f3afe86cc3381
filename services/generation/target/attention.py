"""Attention over the paged key/value cache, for sequences and for token trees, in one order of additions."""

from __future__ import annotations

import numpy as np

from services.generation.target.kernels import BLOCK, LANES, Float32, Int32, exp, kernel, lane_sum


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

    A row sees the first `contiguous[r]` slots of its sequence (through `tables[sequences[r]]`, its block table), then
    the pool slots `branches[branch_starts[r]:branch_starts[r + 1]]`: its ancestors in the token tree that do not lie
    in one run with the committed tokens, itself last. Slot and branch keys go through the same additions in the same
    order, so a row in a tree gets the bits that it would get if its path were the sequence. `window` > 0 hides keys
    that many positions back.

    queries [rows, heads + 2 kv_heads, dim] as `rotate_and_store` leaves them; keys [blocks, kv_heads, dim, BLOCK];
    values [blocks, kv_heads, BLOCK, dim]; out [rows, heads, dim].
    """
    group = heads // values.shape[1]
    blocks = tables.shape[1] + 1 + branches.shape[0] // BLOCK
    by_block = np.empty((blocks, BLOCK), np.float32)
    scores = by_block.reshape(blocks * BLOCK)
    bits = np.empty(blocks * BLOCK, np.int32)
    lanes = np.empty(LANES, np.float32)
    mixed = np.empty(values.shape[3], np.float32)
    for r in range(queries.shape[0]):
        table, run, branch = tables[sequences[r]], contiguous[r], branch_starts[r]
        end = run + branch_starts[r + 1] - branch
        first = max(0, positions[r] + 1 - window) if window > 0 else 0
        first_block, last_block = first // BLOCK, (run + BLOCK - 1) // BLOCK
        for h in range(heads):
            kv = h // group
            for b in range(first_block, last_block):
                _score_block(queries, r, h, keys, table[b], kv, by_block, b)
            for j in range(run, end):
                scores[j] = _score_slot(queries, r, h, keys, branches[branch + j - run], kv)
            total = _softmax(scores[first:end], first % LANES, bits, lanes, scale)
            mixed[:] = np.float32(0.0)
            for b in range(first_block, last_block):
                low, high = max(first - b * BLOCK, 0), min(run - b * BLOCK, BLOCK)
                _accumulate(scores, b * BLOCK, values, table[b], kv, low, high, mixed)
            for j in range(max(run, first), end):
                slot = branches[branch + j - run]
                offset = slot % BLOCK
                _accumulate(scores, j - offset, values, slot // BLOCK, kv, offset, offset + 1, mixed)
            for i in range(mixed.shape[0]):
                out[r, h, i] = mixed[i] / total


@kernel
def _score_block(
    queries: Float32, r: int, head: int, keys: Float32, block: int, kv: int, scores: Float32, to: int
) -> None:
    """scores[to, j] = sum over i of queries[r, head, i] * keys[block, kv, i, j], terms in the order of i."""
    dim = keys.shape[2]
    for j in range(BLOCK):
        scores[to, j] = np.float32(0.0)
    for i in range(0, dim - dim % 4, 4):
        q0, q1 = queries[r, head, i], queries[r, head, i + 1]
        q2, q3 = queries[r, head, i + 2], queries[r, head, i + 3]
        for j in range(BLOCK):
            partial = (scores[to, j] + q0 * keys[block, kv, i, j]) + q1 * keys[block, kv, i + 1, j]
            scores[to, j] = (partial + q2 * keys[block, kv, i + 2, j]) + q3 * keys[block, kv, i + 3, j]
    for i in range(dim - dim % 4, dim):
        for j in range(BLOCK):
            scores[to, j] = scores[to, j] + queries[r, head, i] * keys[block, kv, i, j]


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
        largest = lanes[lane] if lanes[lane] > largest else largest
    return np.float32(largest)


@kernel
def _softmax(scores: Float32, lane_of_first: int, bits: Int32, lanes: Float32, scale: np.float32) -> np.float32:
    """scores = exp(scale * score - the largest of them); returns their sum, score j in lane (lane_of_first + j) %
    LANES.
    """
    count = scores.shape[0]
    for j in range(count):
        scores[j] = scores[j] * scale
    largest = _largest(scores, lanes)
    for j in range(count):
        scores[j] = scores[j] - largest
    exp(scores, bits)
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
    return lane_sum(lanes)


@kernel
def _accumulate(
    weights: Float32, at: int, values: Float32, block: int, kv: int, first: int, last: int, mixed: Float32
) -> None:
    """mixed += sum over j in [first, last) of weights[at + j] * values[block, kv, j], terms in the order of j."""
    dim = mixed.shape[0]
    j = first
    while j + 4 <= last:
        w0, w1, w2, w3 = weights[at + j], weights[at + j + 1], weights[at + j + 2], weights[at + j + 3]
        for i in range(dim):
            partial = (mixed[i] + w0 * values[block, kv, j, i]) + w1 * values[block, kv, j + 1, i]
            mixed[i] = (partial + w2 * values[block, kv, j + 2, i]) + w3 * values[block, kv, j + 3, i]
        j += 4
    while j < last:
        w0 = weights[at + j]
        for i in range(dim):
            mixed[i] = mixed[i] + w0 * values[block, kv, j, i]
        j += 1

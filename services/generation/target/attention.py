"""Attention over the paged key/value cache, for sequences and for token trees, in one order of additions."""

from __future__ import annotations

import numpy as np

from services.generation.target.kernels import BLOCK, LANES, Float32, Int32, exp, fma, kernel, lane_sum

PAIR = 2  # query heads that go through the cache together


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

    Two query heads that share a key head go through the cache together, so that each key is loaded once for both; a
    head left over goes alone. The additions of a head are the same either way.
    """
    group = heads // values.shape[1]
    blocks = tables.shape[1] + 1 + branches.shape[0] // BLOCK
    by_block = np.empty((PAIR, blocks, BLOCK), np.float32)
    scores = by_block.reshape(PAIR, blocks * BLOCK)
    lanes = np.empty(LANES, np.float32)
    mixed = np.empty((PAIR, values.shape[3]), np.float32)
    for r in range(queries.shape[0]):
        table, run, branch = tables[sequences[r]], contiguous[r], branch_starts[r]
        end = run + branch_starts[r + 1] - branch
        first = max(0, positions[r] + 1 - window) if window > 0 else 0
        first_block, last_block = first // BLOCK, (run + BLOCK - 1) // BLOCK
        h = 0
        while h < heads:
            kv = h // group
            lines = min(PAIR, (kv + 1) * group - h)
            for b in range(first_block, last_block):
                if lines == PAIR:
                    _score_pair(queries, r, h, keys, table[b], kv, by_block, b)
                else:
                    _score_block(queries, r, h, keys, table[b], kv, by_block, b)
            for line in range(lines):
                for j in range(run, end):
                    scores[line, j] = _score_slot(queries, r, h + line, keys, branches[branch + j - run], kv)
                total = _softmax(scores[line, first:end], first % LANES, lanes, scale)
                for i in range(mixed.shape[1]):
                    out[r, h + line, i] = total
            mixed[:] = np.float32(0.0)
            for b in range(first_block, last_block):
                low, high = max(first - b * BLOCK, 0), min(run - b * BLOCK, BLOCK)
                if lines == PAIR:
                    _accumulate_pair(scores, b * BLOCK, values, table[b], kv, low, high, mixed)
                else:
                    _accumulate(scores[0], b * BLOCK, values, table[b], kv, low, high, mixed[0])
            for line in range(lines):
                for j in range(max(run, first), end):
                    slot = branches[branch + j - run]
                    offset = slot % BLOCK
                    _accumulate(scores[line], j - offset, values, slot // BLOCK, kv, offset, offset + 1, mixed[line])
                for i in range(mixed.shape[1]):
                    out[r, h + line, i] = mixed[line, i] / out[r, h + line, i]
            h += lines


@kernel
def _score_pair(
    queries: Float32, r: int, head: int, keys: Float32, block: int, kv: int, scores: Float32, to: int
) -> None:
    """`_score_block` of heads `head` and `head + 1` into scores[0, to] and scores[1, to]."""
    dim = keys.shape[2]
    for j in range(BLOCK):
        scores[0, to, j] = np.float32(0.0)
        scores[1, to, j] = np.float32(0.0)
    for i in range(0, dim - dim % 4, 4):
        p0, p1 = queries[r, head, i], queries[r, head, i + 1]
        p2, p3 = queries[r, head, i + 2], queries[r, head, i + 3]
        q0, q1 = queries[r, head + 1, i], queries[r, head + 1, i + 1]
        q2, q3 = queries[r, head + 1, i + 2], queries[r, head + 1, i + 3]
        for j in range(BLOCK):
            k0, k1 = keys[block, kv, i, j], keys[block, kv, i + 1, j]
            k2, k3 = keys[block, kv, i + 2, j], keys[block, kv, i + 3, j]
            scores[0, to, j] = fma(p3, k3, fma(p2, k2, fma(p1, k1, fma(p0, k0, scores[0, to, j]))))
            scores[1, to, j] = fma(q3, k3, fma(q2, k2, fma(q1, k1, fma(q0, k0, scores[1, to, j]))))
    for i in range(dim - dim % 4, dim):
        for j in range(BLOCK):
            scores[0, to, j] = fma(queries[r, head, i], keys[block, kv, i, j], scores[0, to, j])
            scores[1, to, j] = fma(queries[r, head + 1, i], keys[block, kv, i, j], scores[1, to, j])


@kernel
def _score_block(
    queries: Float32, r: int, head: int, keys: Float32, block: int, kv: int, scores: Float32, to: int
) -> None:
    """scores[0, to, j] = sum over i of queries[r, head, i] * keys[block, kv, i, j], terms in the order of i."""
    dim = keys.shape[2]
    for j in range(BLOCK):
        scores[0, to, j] = np.float32(0.0)
    for i in range(0, dim - dim % 4, 4):
        q0, q1 = queries[r, head, i], queries[r, head, i + 1]
        q2, q3 = queries[r, head, i + 2], queries[r, head, i + 3]
        for j in range(BLOCK):
            partial = fma(q1, keys[block, kv, i + 1, j], fma(q0, keys[block, kv, i, j], scores[0, to, j]))
            scores[0, to, j] = fma(q3, keys[block, kv, i + 3, j], fma(q2, keys[block, kv, i + 2, j], partial))
    for i in range(dim - dim % 4, dim):
        for j in range(BLOCK):
            scores[0, to, j] = fma(queries[r, head, i], keys[block, kv, i, j], scores[0, to, j])


@kernel
def _score_slot(queries: Float32, r: int, head: int, keys: Float32, slot: int, kv: int) -> np.float32:
    """The score of one cache slot, by the same additions as `_score_block` makes for each of its columns."""
    total = np.float32(0.0)
    for i in range(keys.shape[2]):
        total = fma(queries[r, head, i], keys[slot // BLOCK, kv, i, slot % BLOCK], total)
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
def _softmax(scores: Float32, lane_of_first: int, lanes: Float32, scale: np.float32) -> np.float32:
    """scores = exp(scale * (score - the largest of them)); returns their sum, score j in lane (lane_of_first + j) %
    LANES.
    """
    count = scores.shape[0]
    shift = -_largest(scores, lanes) * scale
    for j in range(count):
        scores[j] = exp(fma(scores[j], scale, shift))
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
def _accumulate_pair(
    weights: Float32, at: int, values: Float32, block: int, kv: int, first: int, last: int, mixed: Float32
) -> None:
    """`_accumulate` of two lines: weights [2, n], mixed [2, dim]."""
    dim = mixed.shape[1]
    j = first
    while j + 4 <= last:
        w0, w1, w2, w3 = weights[0, at + j], weights[0, at + j + 1], weights[0, at + j + 2], weights[0, at + j + 3]
        u0, u1, u2, u3 = weights[1, at + j], weights[1, at + j + 1], weights[1, at + j + 2], weights[1, at + j + 3]
        for i in range(dim):
            v0, v1 = values[block, kv, j, i], values[block, kv, j + 1, i]
            v2, v3 = values[block, kv, j + 2, i], values[block, kv, j + 3, i]
            mixed[0, i] = fma(w3, v3, fma(w2, v2, fma(w1, v1, fma(w0, v0, mixed[0, i]))))
            mixed[1, i] = fma(u3, v3, fma(u2, v2, fma(u1, v1, fma(u0, v0, mixed[1, i]))))
        j += 4
    while j < last:
        w0, u0 = weights[0, at + j], weights[1, at + j]
        for i in range(dim):
            mixed[0, i] = fma(w0, values[block, kv, j, i], mixed[0, i])
            mixed[1, i] = fma(u0, values[block, kv, j, i], mixed[1, i])
        j += 1


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
            partial = fma(w1, values[block, kv, j + 1, i], fma(w0, values[block, kv, j, i], mixed[i]))
            mixed[i] = fma(w3, values[block, kv, j + 3, i], fma(w2, values[block, kv, j + 2, i], partial))
        j += 4
    while j < last:
        w0 = weights[at + j]
        for i in range(dim):
            mixed[i] = fma(w0, values[block, kv, j, i], mixed[i])
        j += 1

"""Attention over the paged key/value cache, for sequences and for token trees, in one order of additions."""

from __future__ import annotations

import numpy as np

from services.generation.target.kernels import BLOCK, LANES, Float32, Int32, exp, fma, inlined, kernel, lane_sum
from services.generation.target.vectors import (
    fold_largest,
    fold_sum,
    mix_one,
    mix_one_narrow,
    mix_one_wide,
    mix_pair,
    mix_pair_narrow,
    mix_pair_wide,
    score_one,
    score_pair,
)

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
    head left over goes alone. All rows go through a key head before the next one is read, so that the keys of a
    sequence come from the nearest cache. Neither changes the additions of a head.
    """
    kv_heads, dim = values.shape[1], values.shape[3]
    blocks = tables.shape[1] + 1 + branches.shape[0] // BLOCK
    scores = np.empty((PAIR, blocks * BLOCK), np.float32)
    drafted = np.empty((PAIR, BLOCK), np.float32)
    lanes, totals = np.empty(LANES, np.float32), np.empty(PAIR, np.float32)
    mixed = np.empty((PAIR, dim), np.float32)
    for kv in range(kv_heads):
        group = heads // kv_heads
        for r in range(queries.shape[0]):
            table, run = tables[sequences[r]], contiguous[r]
            branch = branches[branch_starts[r] : branch_starts[r + 1]]
            end = run + branch.shape[0]
            first = max(0, positions[r] + 1 - window) if window > 0 else 0
            first_block, last_block = first // BLOCK, (run + BLOCK - 1) // BLOCK
            for h in range(kv * group, (kv + 1) * group, PAIR):
                lines = min(PAIR, (kv + 1) * group - h)
                for b in range(first_block, last_block):
                    _score(queries, r, h, lines, keys, table[b], kv, scores, b * BLOCK)
                _score_branch(queries, r, h, lines, keys, branch, kv, drafted, scores, run)
                mixed[:] = np.float32(0.0)
                for line in range(lines):
                    totals[line] = _softmax(scores, line, first, end, lanes, scale)
                for b in range(first_block, last_block):
                    low, high = max(first - b * BLOCK, 0), min(run - b * BLOCK, BLOCK)
                    if low < high:
                        _mix(scores, lines, b * BLOCK + low, values, table[b], kv, low, high - low, mixed)
                for j in range(max(run, first), end):
                    slot = branch[j - run]
                    _mix(scores, lines, j, values, slot // BLOCK, kv, slot % BLOCK, 1, mixed)
                for line in range(lines):
                    for i in range(dim):
                        out[r, h + line, i] = mixed[line, i] / totals[line]


@inlined
def _score(
    queries: Float32, r: int, head: int, lines: int, keys: Float32, block: int, kv: int, scores: Float32, to: int
) -> None:
    """scores[l, to + j] = sum over i of queries[r, head + l, i] * keys[block, kv, i, j], terms in the order of i."""
    dim = keys.shape[2]
    at, key = (r * queries.shape[1] + head) * dim, (block * keys.shape[1] + kv) * dim * BLOCK
    if lines == PAIR:
        score_pair(queries, (at, at + dim), keys, key, dim, scores, (to, scores.shape[1] + to))
    else:
        score_one(queries, (at,), keys, key, dim, scores, (to,))


@inlined
def _score_branch(
    queries: Float32,
    r: int,
    head: int,
    lines: int,
    keys: Float32,
    branch: Int32,
    kv: int,
    drafted: Float32,
    scores: Float32,
    to: int,
) -> None:
    """scores[l, to + n] of the slots branch[n]. Neighbours in a block are scored with the whole block, once."""
    scored = np.int32(-1)
    for n in range(branch.shape[0]):
        block = branch[n] // BLOCK
        if block != scored:
            _score(queries, r, head, lines, keys, block, kv, drafted, 0)
            scored = block
        for line in range(lines):
            scores[line, to + n] = drafted[line, branch[n] % BLOCK]


@inlined
def _softmax(scores: Float32, line: int, first: int, end: int, lanes: Float32, scale: np.float32) -> np.float32:
    """scores[line, first:end] = exp(scale * (score - the largest of them)); returns their sum, score j in lane j %
    LANES.

    Up to whole vectors, the neighbours become zeros: what is added to no sum, and looked at by nobody.
    """
    low, high = first - first % LANES, end + (-end) % LANES
    row = scores[line, low:high]
    _fill_around(row, first - low, end - low, -np.float32(np.inf))
    lanes[:] = np.float32(-np.inf)
    fold_largest(row, 0, row.shape[0] // LANES, lanes)
    largest = lanes[0]
    for lane in range(1, LANES):
        largest = lanes[lane] if lanes[lane] > largest else largest
    shift = -largest * scale
    for j in range(row.shape[0]):
        row[j] = exp(fma(row[j], scale, shift))
    _fill_around(row, first - low, end - low, np.float32(0.0))
    lanes[:] = np.float32(0.0)
    fold_sum(row, 0, row.shape[0] // LANES, lanes)
    return lane_sum(lanes)


@inlined
def _fill_around(row: Float32, first: int, end: int, value: np.float32) -> None:
    for j in range(first):
        row[j] = value
    for j in range(end, row.shape[0]):
        row[j] = value


@inlined
def _mix(
    weights: Float32,
    lines: int,
    at: int,
    values: Float32,
    block: int,
    kv: int,
    first: int,
    count: int,
    mixed: Float32,
) -> None:
    """mixed[l] += sum over j < count of weights[l, at + j] * values[block, kv, first + j], terms in the order of j."""
    dim, stride = mixed.shape[1], weights.shape[1]
    value, i = ((block * values.shape[1] + kv) * BLOCK + first) * dim, 0
    while i + LANES <= dim:
        pair_at, pair_to = (at, stride + at), (i, dim + i)
        if i + 4 * LANES <= dim:
            if lines == PAIR:
                mix_pair_wide(weights, pair_at, values, value + i, dim, count, mixed, pair_to)
            else:
                mix_one_wide(weights, (at,), values, value + i, dim, count, mixed, (i,))
            i += 4 * LANES
        elif i + 2 * LANES <= dim:
            if lines == PAIR:
                mix_pair(weights, pair_at, values, value + i, dim, count, mixed, pair_to)
            else:
                mix_one(weights, (at,), values, value + i, dim, count, mixed, (i,))
            i += 2 * LANES
        else:
            if lines == PAIR:
                mix_pair_narrow(weights, pair_at, values, value + i, dim, count, mixed, pair_to)
            else:
                mix_one_narrow(weights, (at,), values, value + i, dim, count, mixed, (i,))
            i += LANES
    for column in range(i, dim):
        for line in range(lines):
            total = mixed[line, column]
            for j in range(count):
                total = fma(weights[line, at + j], values[block, kv, first + j, column], total)
            mixed[line, column] = total

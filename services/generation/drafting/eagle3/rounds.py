"""A draft, step by step: rows of the head for the frontiers of all trees, and what it says below them.

`draft` takes all steps of a small head in one call; other heads are run between `advance` and `children`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.eagle3 import growing
from services.generation.drafting.eagle3.confidence import Float64
from services.generation.drafting.eagle3.growing import Int64, Tree
from services.generation.drafting.eagle3.kernels import best_children, step
from services.generation.drafting.eagle3.products import Panels
from services.generation.drafting.eagle3.quick import quick
from services.generation.target.kernels import BLOCK, Float32, Int32

Trees = tuple[Int64, Float64, Int64, Int64, Int64, Int64, Float64, Float64, Int64]
"""As `growing.Tree`, with a first dimension of sequences; counts of several confidences, and which is whose."""

Sampling = tuple[Float64, NDArray[np.uint64], Int32, Int32, Float64, Int32, Int64, Float32]
"""By sequence: temperature, seed, choice, rule of `coupling`, (top_k, top_p, min_p); then where its adjustments
start, their draft ids, their (divisor, bias).
"""

ASKED = 4  # copies below a node that the head is asked about

Places = tuple[Int64, Int32, Int32, Int32, Int32, Int32, Int32, Int64]
"""Rows of a step: tokens, positions, slots, lines, contiguous, branch_starts and branches as in `target.rows.Rows`,
and the row of the step before that each goes on from.
"""


class Growing(NamedTuple):
    """Trees that are to grow, what they grow under and by, and room for their rows."""

    trees: Trees
    lengths: Int64  # [lines] committed tokens of each
    sampling: Sampling
    places: Places


@quick
def place(tree: Tree, node: int, length: int, table: Int32) -> None:
    """Give a node the next entry of the head's cache behind the `length` of committed tokens.

    Its RUN are the entries from there on that are its first ancestors, itself included; a node whose RUN is its DEPTH
    lies in one run with the committed tokens.
    """
    nodes, state = tree[0], tree[2]
    entry, parent = state[growing.ENTRIES], nodes[node, growing.PARENT]
    run = nodes[parent, growing.RUN]
    straight = run == nodes[parent, growing.DEPTH] and entry == run
    nodes[node, growing.RUN] = run + 1 if straight else run
    nodes[node, growing.SLOT] = table[(length + entry) // BLOCK] * BLOCK + (length + entry) % BLOCK
    state[growing.ENTRIES] = entry + 1


@quick
def advance(trees: Trees, lengths: Int64, tables: Int32, tokens: Int64, shares: Float32, places: Places) -> int:
    """Take the children of all frontiers, and lay out the rows of the next step; how many there are.

    tokens and shares [rows of the last step, width and ASKED], rows in the order of sequences and, in each, of its
    frontier.
    """
    row_tokens, positions, slots, lines, contiguous, branch_starts, branches, sources = places
    row, first = 0, 0
    branch_starts[0] = 0
    for line in range(trees[2].shape[0]):
        expanded = trees[2][line, growing.FRONTIER]
        if expanded == 0:
            continue
        tree = (
            trees[0][line], trees[1][line], trees[2][line], trees[3][line], trees[4][line], trees[5][line],
            trees[6][line], trees[7][trees[8][line]],
        )  # fmt: skip
        growing.take(tree, tokens[first : first + expanded], shares[first : first + expanded])
        for i in range(tree[2][growing.FRONTIER]):
            node = tree[3][i]
            place(tree, node, lengths[line], tables[line])
            depth, run = tree[0][node, growing.DEPTH], tree[0][node, growing.RUN]
            row_tokens[row], positions[row] = tree[0][node, growing.TOKEN], lengths[line] + depth - 1
            slots[row], lines[row] = tree[0][node, growing.SLOT], line
            contiguous[row], sources[row] = lengths[line] + run, first + tree[4][i]
            branch_starts[row + 1] = branch_starts[row] + depth - run
            for at in range(branch_starts[row + 1] - 1, branch_starts[row] - 1, -1):
                branches[at] = tree[0][node, growing.SLOT]
                node = tree[0][node, growing.PARENT]
            row += 1
        first += expanded
    return row


@quick
def copies_below(trees: Trees, asked: Int64) -> None:
    """Copies below the nodes of all frontiers, see `growing.copies_below`; asked [rows, most]."""
    first = 0
    for line in range(trees[2].shape[0]):
        tree = (
            trees[0][line], trees[1][line], trees[2][line], trees[3][line], trees[4][line], trees[5][line],
            trees[6][line], trees[7][trees[8][line]],
        )  # fmt: skip
        growing.copies_below(tree, asked[first:])
        first += trees[2][line, growing.FRONTIER]


@quick
def children(
    logits: Float32, sampling: Sampling, lines: Int32, positions: Int32, target_ids: Int64, draft_ids: Int64,
    tokens: Int64, shares: Float32, firsts: Int64,
) -> None:  # fmt: skip
    """The likeliest children of each row, and the shares of the copies that its last ASKED `tokens` name, see
    `best_children`; lines and positions [rows] are those of the entries, draft_ids [vocab_size] -1 where the head has
    none.
    """
    temperatures, seeds, choices, rules, cuts, starts, ids, adjustments = sampling
    for row in range(len(lines)):
        for i in range(starts[lines[row]], starts[lines[row] + 1]):
            logit, divisor = logits[row, ids[i]], adjustments[i, 0]
            logits[row, ids[i]] = (logit / divisor if logit > 0.0 else logit * divisor) + adjustments[i, 1]
    after = positions + np.int32(2)  # entry i read token i + 1
    width = tokens.shape[1] - ASKED
    asked = np.full((len(lines), ASKED), -1, np.int64)
    for row in range(len(lines)):
        for i in range(ASKED):
            if tokens[row, width + i] >= 0:
                asked[row, i] = draft_ids[tokens[row, width + i]]
    best_children(
        logits, target_ids, temperatures[lines], seeds[lines], choices[lines], after, rules[lines], cuts[lines],
        tokens[:, :width], shares[:, :width], asked, shares[:, width:], firsts,
    )  # fmt: skip


@quick
def draft(
    trees: Trees, lengths: Int64, tables: Int32, sampling: Sampling, places: Places, tokens: Int64, positions: Int32,
    slots: Int32, wanted: Int32, lines: Int32, feature: Float32,
    linears: tuple[Panels, ...], norms: tuple[Float32, ...], head_norms: Float32, epsilon: np.float32,
    normed_residual: bool, normed_state: bool, heads: int, cos: Float32, sin: Float32, keys: Float32, values: Float32,
    scale: np.float32, share: int, threads: int, embeddings: Float32, target_ids: Int64, draft_ids: Int64,
) -> Int64:  # fmt: skip
    """Compute the entries of committed tokens and grow all trees to their end.

    Entries read `tokens`, at `positions`, into `slots`, over `feature` [entries, hidden]; the `wanted` ones are the
    last of the sequences `lines`, which draft. The other names are those of `kernels.step`. Returns what either rule of
    `coupling` puts first below each root, [lines, 2].
    """
    width, count = trees[3].shape[1], len(wanted)
    rows = np.empty((len(trees[2]) * width, feature.shape[1]), np.float32)
    found, given = np.empty((len(rows), width + ASKED), np.int64), np.empty((len(rows), width + ASKED), np.float32)
    logits = np.empty((len(rows), len(target_ids)), np.float32)
    out, normed = np.empty_like(rows), np.empty_like(rows)
    reading = positions[wanted]
    firsts, chosen, first_step = np.empty((count, 2), np.int64), np.empty((len(rows), 2), np.int64), True
    contiguous, starts = reading + np.int32(1), np.zeros(count + 1, np.int32)
    branches = places[6]
    while count:
        step(
            embeddings[tokens], feature, linears, norms, head_norms, epsilon, normed_residual, heads, positions, slots,
            wanted, lines, reading, contiguous, starts, branches, tables, cos, sin, keys, values, scale, share,
            threads, out[:count], normed[:count], logits[:count],
        )  # fmt: skip
        copies_below(trees, found[:count, width:])
        children(
            logits[:count], sampling, lines, reading, target_ids, draft_ids, found[:count], given[:count],
            chosen[:count],
        )  # fmt: skip
        if first_step:
            firsts[:], first_step = chosen[:count], False
        count = advance(trees, lengths, tables, found, given, places)
        tokens, positions, slots, lines = places[0][:count], places[1][:count], places[2][:count], places[3][:count]
        contiguous, starts, reading = places[4][:count], places[5][: count + 1], positions
        wanted = np.arange(count).astype(np.int32)
        feature = normed[places[7][:count]] if normed_state else out[places[7][:count]]
    return firsts

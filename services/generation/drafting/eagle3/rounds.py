"""A draft, step by step: rows of the head for the frontiers of all trees, and what it says below them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.eagle3 import growing
from services.generation.drafting.eagle3.children import Children, Draws, Float32, Int32, best_children
from services.generation.drafting.eagle3.confidence import Float64
from services.generation.drafting.eagle3.growing import Int64, Tree
from services.generation.drafting.relaxed import relaxed
from services.generation.target.blocks import BLOCK

ASKED = 4  # copies below a node that the head is asked about


class Trees(NamedTuple):
    """As `growing.Tree`, with a first dimension of sequences, or lines; counts of several confidences, and `whose` of
    them each line takes.
    """

    nodes: Int64
    odds: Float64
    state: Int64
    frontier: Int64
    sources: Int64
    bounds: Int64
    prices: Float64
    counts: Float64
    whose: Int64


class Sampling(NamedTuple):
    """By line, see `children.Draws`."""

    temperatures: Float64
    seeds: NDArray[np.uint64]
    choices: Int32
    rules: Int32
    cuts: Float64


class Places(NamedTuple):
    """Rows of a step, as in `target.rows.Rows`; `sources` are the rows of the step before that each goes on from."""

    tokens: Int64
    positions: Int32
    slots: Int32
    lines: Int32
    contiguous: Int32
    branch_starts: Int32
    branches: Int32
    sources: Int64


class Vocabulary(NamedTuple):
    """The target's id of each of the head's tokens, and back: -1 where the head has none."""

    target_ids: Int64
    draft_ids: Int64


class Growing(NamedTuple):
    """Trees that are to grow, what they grow under and by, and room for their rows."""

    trees: Trees
    lengths: Int64  # [lines] committed tokens of each
    sampling: Sampling
    places: Places


@relaxed
def tree_of(trees: Trees, line: int) -> Tree:
    return Tree(
        trees.nodes[line], trees.odds[line], trees.state[line], trees.frontier[line], trees.sources[line],
        trees.bounds[line], trees.prices[line], trees.counts[trees.whose[line]],
    )  # fmt: skip


@relaxed
def place(tree: Tree, node: int, length: int, table: Int32) -> None:
    """Give a node the next entry of the head's cache behind the `length` of committed tokens.

    Its RUN are the entries from there on that are its first ancestors, itself included; a node whose RUN is its DEPTH
    lies in one run with the committed tokens.
    """
    nodes, state = tree.nodes, tree.state
    entry, parent = state[growing.ENTRIES], nodes[node, growing.PARENT]
    run = nodes[parent, growing.RUN]
    straight = run == nodes[parent, growing.DEPTH] and entry == run
    nodes[node, growing.RUN] = run + 1 if straight else run
    nodes[node, growing.SLOT] = table[(length + entry) // BLOCK] * BLOCK + (length + entry) % BLOCK
    state[growing.ENTRIES] = entry + 1


@relaxed
def advance(trees: Trees, lengths: Int64, tables: Int32, tokens: Int64, shares: Float32, places: Places) -> int:
    """Take the children of all frontiers, and lay out the rows of the next step; how many there are.

    tokens and shares [rows of the last step, width and ASKED], rows in the order of sequences and, in each, of its
    frontier.
    """
    row, first = 0, 0
    places.branch_starts[0] = 0
    for line in range(trees.state.shape[0]):
        expanded = trees.state[line, growing.FRONTIER]
        if expanded == 0:
            continue
        tree, length = tree_of(trees, line), lengths[line]
        growing.take(tree, tokens[first : first + expanded], shares[first : first + expanded])
        for i in range(tree.state[growing.FRONTIER]):
            node = tree.frontier[i]
            place(tree, node, length, tables[line])
            depth, run = tree.nodes[node, growing.DEPTH], tree.nodes[node, growing.RUN]
            places.tokens[row], places.positions[row] = tree.nodes[node, growing.TOKEN], length + depth - 1
            places.slots[row], places.lines[row] = tree.nodes[node, growing.SLOT], line
            places.contiguous[row], places.sources[row] = length + run, first + tree.sources[i]
            start = places.branch_starts[row]
            places.branch_starts[row + 1] = start + depth - run
            for at in range(start + depth - run - 1, start - 1, -1):
                places.branches[at] = tree.nodes[node, growing.SLOT]
                node = tree.nodes[node, growing.PARENT]
            row += 1
        first += expanded
    return row


@relaxed
def children(
    trees: Trees, logits: Float32, sampling: Sampling, lines: Int32, positions: Int32, vocabulary: Vocabulary,
    found: Children,
) -> None:  # fmt: skip
    """The likeliest children of each row, and the shares of copies: `found` has ASKED columns for them behind others.

    lines and positions [rows] are those of the entries, in the order of the frontiers.
    """
    width = found.tokens.shape[1] - ASKED
    asked = _copies_below(trees, found.tokens[:, width:], vocabulary.draft_ids)
    draws = Draws(
        sampling.temperatures[lines], sampling.seeds[lines], sampling.choices[lines],
        positions + np.int32(2),  # entry i read token i + 1
        sampling.rules[lines], sampling.cuts[lines],
    )  # fmt: skip
    best = Children(found.tokens[:, :width], found.shares[:, :width], found.firsts)
    best_children(logits, vocabulary.target_ids, draws, asked, found.shares[:, width:], best)


@relaxed
def _copies_below(trees: Trees, tokens: Int64, draft_ids: Int64) -> Int64:
    """Copies below the nodes of all frontiers, see `growing.copies_below`, into `tokens`; returns the head's ids."""
    first = 0
    for line in range(trees.state.shape[0]):
        growing.copies_below(tree_of(trees, line), tokens[first:])
        first += trees.state[line, growing.FRONTIER]
    asked = np.full(tokens.shape, -1, np.int64)
    for row in range(tokens.shape[0]):
        for i in range(tokens.shape[1]):
            if tokens[row, i] >= 0:
                asked[row, i] = draft_ids[tokens[row, i]]
    return asked

"""The nodes of a draft tree: how candidates are added, which of them pay for their rows, and which of them held.

After EAGLE-2 (Li et al. 2024, §4). Beyond that, probabilities are measured (`acceptance`), and the costs of rows and
steps decide on the size of the tree.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.acceptance import PREDICTED, copy_kind, first_choice_kind, model_kind
from services.generation.engine.economics import Economics, Pass, best_depth, best_pass, nodes_to_expand
from services.generation.engine.numba_cache import relaxed
from services.generation.target.arrays import Bools, Float32, Float64, Int64

NODE = np.dtype(
    [
        ("token", np.int32),
        ("parent", np.int32),  # an earlier node; -1 for the root, node 0
        ("depth", np.int32),
        ("copy", np.int32),  # source of the copy that it is from; NONE for no copy
        ("length", np.int32),  # of the match before a copied token; includes the copied tokens above it
        ("count", np.int32),  # copies that go through it
        ("copy_kind", np.int32),  # see `acceptance`; NONE for no copy
        ("model_kind", np.int32),  # NONE if no model proposed it
        ("rank", np.int32),  # among the model's tokens below the parent
        ("given", np.float64),  # probability that it holds if its parent does
        ("chance", np.float64),  # that all of its path holds
    ],
    align=True,
)
Nodes = NDArray[Any]  # of dtype NODE
NONE = -1
MOST_COPIED = 160  # nodes of copies


class Bounds(NamedTuple):
    """Bounds of copies: how many with ends of their own, how deep, and down to which probability they are added."""

    apart: int
    depth: int
    least: float


class Level(NamedTuple):
    """A model's tokens below each expanded node. A token below 0 is missing, a share below 0 is not known."""

    tokens: Int64  # [expanded, width], the likeliest first
    shares: Float32
    asked: Int64  # [expanded, any] copies below the node
    asked_shares: Float32


class Growth(NamedTuple):
    """Bounds of a tree that a model's levels are added to."""

    width: int  # nodes expanded at each depth
    most: int  # nodes verified
    steps: int  # levels, this one included
    ends: bool  # with this level


@relaxed
def child(nodes: Nodes, count: int, parent: int, token: int) -> tuple[int, int]:
    """Find the node of a token below a parent, or make it. Returns the node and the new number of nodes."""
    for node in range(parent + 1, count):
        if nodes[node].parent == parent and nodes[node].token == token:
            return node, count
    new = nodes[count]
    new.token, new.parent, new.depth = token, parent, nodes[parent].depth + 1
    new.copy, new.length, new.count, new.rank = NONE, 0, 0, 0
    new.copy_kind, new.model_kind, new.given, new.chance = NONE, NONE, 0.0, 0.0
    return count, count + 1


@relaxed
def add_copies(
    nodes: Nodes, count: int, tokens: Int64, lengths: Int64, source: int, bounds: Bounds, rates: Float64
) -> tuple[int, int]:
    """Add copies [found, any] within bounds, their first tokens in any case. Returns the new number of nodes, and how
    many copies with ends of their own were added.
    """
    apart = 0
    for row in range(len(lengths)):
        if apart == bounds.apart:
            break
        parent, before = 0, count
        for i in range(min(tokens.shape[1], bounds.depth)):
            if tokens[row, i] < 0 or count > MOST_COPIED:
                break
            length = lengths[row] + i
            chance = nodes[parent].chance * rates[copy_kind(source, length, 0)]
            if i > 0 and chance < bounds.least:
                break
            known = count
            node, count = child(nodes, count, parent, tokens[row, i])
            if node == known:
                nodes[node].copy, nodes[node].length, nodes[node].chance = source, length, chance
            nodes[node].count += 1
            parent = node
        apart += count > before
    return count, apart


@relaxed
def rank_copies(nodes: Nodes, count: int, rates: Float64) -> None:
    """Give copies their kinds. Siblings are ranked by source, then by length of match, then by number of copies."""
    for node in range(1, count):
        this, rank = nodes[node], 0
        for other in range(this.parent + 1, count):
            beside = nodes[other]
            if beside.parent != this.parent or other == node:
                continue
            if beside.copy != this.copy:
                rank += beside.copy < this.copy
            elif beside.length != this.length:
                rank += beside.length > this.length
            elif beside.count != this.count:
                rank += beside.count > this.count
            else:
                rank += other < node
        this.copy_kind = copy_kind(this.copy, this.length, rank)
        this.given = rates[this.copy_kind]
        this.chance = nodes[this.parent].chance * this.given


@relaxed
def copies_below(nodes: Nodes, count: int, frontier: Int64, asked: Int64) -> None:
    """Fill `asked` [frontier, any] with the tokens of copies below the nodes, NONE for missing ones."""
    asked[:] = NONE
    for line in range(len(frontier)):
        found = 0
        for node in range(frontier[line] + 1, count):
            if nodes[node].parent == frontier[line] and found < asked.shape[1]:
                asked[line, found] = nodes[node].token
                found += 1


@relaxed
def add_level(
    nodes: Nodes, count: int, frontier: Int64, level: Level, growth: Growth, economics: Economics
) -> tuple[int, Int64]:
    """Add a model's tokens below the frontier's nodes. Returns the new number of nodes, and the next frontier."""
    width = level.tokens.shape[1]
    newest, found = np.empty(len(frontier) * (width + level.asked.shape[1]), np.int64), 0
    for line in range(len(frontier)):
        for place in range(width + level.asked.shape[1]):
            asked = place >= width
            token = level.asked[line, place - width] if asked else level.tokens[line, place]
            share = np.float64(level.asked_shares[line, place - width] if asked else level.shares[line, place])
            if token < 0:
                continue
            node, count = child(nodes, count, frontier[line], token)
            this = nodes[node]
            if this.model_kind != NONE:
                continue
            newest[found] = node
            found += 1
            if share >= 0.0:
                this.rank = place
                this.model_kind = model_kind(1 if this.copy != NONE else 0, share, this.depth)
                this.given = economics.rates[this.model_kind]
    for node in range(1, count):
        nodes[node].chance = nodes[nodes[node].parent].chance * nodes[node].given
    return count, _next_frontier(nodes, count, newest[: 0 if growth.ends else found], growth, economics)


@relaxed
def _next_frontier(nodes: Nodes, count: int, newest: Int64, growth: Growth, economics: Economics) -> Int64:
    """The likeliest of the newest nodes, as many as pay for a further step of the model."""
    if len(newest) == 0:
        return newest
    before = worth(nodes, count, growth.most, growth.steps, economics)
    first_choice = economics.rates[first_choice_kind(nodes[newest[0]].depth + 1)]
    best = likeliest(nodes, newest, growth.width)
    return best[: nodes_to_expand(_chances(nodes, best), first_choice, before, economics.costs)]


@relaxed
def expected_chain(nodes: Nodes, count: int, depth: int, most: int, economics: Economics) -> int:
    """The length of the chain of a model's first choices that saves most time, 0 if none saves any. A tree that has
    the caller's prediction leaves it less to gain, and nothing while the prediction is accepted more often than first
    choices: the model would score its tokens again, and worse.
    """
    chance, before = 1.0, Pass(0, 1.0, economics.costs.pass_cost[0])
    for node in range(1, count):
        if nodes[node].copy == PREDICTED and nodes[node].parent == 0:
            chance -= nodes[node].chance
    if 1.0 - chance > economics.rates[first_choice_kind(1)]:
        return 0
    if chance < 1.0:
        before = worth(nodes, count, most, 0, economics)
    rates = np.empty(depth)
    for place in range(depth):
        rates[place] = economics.rates[first_choice_kind(place + 1)]
    return best_depth(rates, chance, before, economics.costs)


@relaxed
def likeliest(nodes: Nodes, among: Int64, most: int) -> Int64:
    """At most `most` of the nodes by falling chance, earlier ones first among equals."""
    best, found = np.empty(min(most, len(among)), np.int64), 0
    for node in among:
        chance = nodes[node].chance
        if found == len(best) and (found == 0 or nodes[best[found - 1]].chance >= chance):
            continue
        at = min(found, len(best) - 1)
        while at > 0 and nodes[best[at - 1]].chance < chance:
            best[at] = best[at - 1]
            at -= 1
        best[at] = node
        found = min(found + 1, len(best))
    return best


@relaxed
def _chances(nodes: Nodes, among: Int64) -> Float64:
    chances = np.empty(len(among))
    for place in range(len(among)):
        chances[place] = nodes[among[place]].chance
    return chances


@relaxed
def choose(nodes: Nodes, count: int, most: int, steps: int, economics: Economics) -> Int64:
    """The nodes to verify: the likeliest, as many as bring the most tokens a second, at most `most`."""
    best = likeliest(nodes, np.arange(1, count), most)
    return best[: best_pass(_chances(nodes, best), steps, economics.costs).drafted]


@relaxed
def worth(nodes: Nodes, count: int, most: int, steps: int, economics: Economics) -> Pass:
    """The pass over the nodes that `choose` returns."""
    best = likeliest(nodes, np.arange(1, count), most)
    return best_pass(_chances(nodes, best), steps, economics.costs)


@relaxed
def ordered(nodes: Nodes, count: int, best: Int64) -> tuple[Int64, Int64]:
    """The root and `best` in the order of a tree, and their parents' places in it. The path of first choices comes
    first: its rows then lie in one run with the committed tokens' rows.
    """
    left, place = np.zeros(count, np.bool_), np.zeros(count, np.int64)
    for node in best:
        left[node] = True
    order, filled, tip = np.zeros(len(best) + 1, np.int64), 1, 0
    while tip >= 0:
        parent, tip = tip, -1
        for node in range(parent + 1, count):
            below = left[node] and nodes[node].parent == parent
            if below and (tip < 0 or nodes[node].chance > nodes[tip].chance):
                tip = node
        if tip >= 0:
            order[filled], left[tip] = tip, False
            filled += 1
    for node in range(1, count):
        if left[node]:
            order[filled] = node
            filled += 1
    parents = np.full(filled, -1, np.int64)
    for i in range(filled):
        place[order[i]] = i
        if i > 0:
            parents[i] = place[nodes[order[i]].parent]
    return order[:filled], parents


@relaxed
def judged(nodes: Nodes, count: int, emitted: Int64) -> tuple[Int64, Bools]:
    """Kinds of all candidates, verified or not, whose parents were emitted after the root, and whether they held."""
    held = np.zeros(count, np.bool_)
    held[0] = True
    kinds, right, found = np.empty(3 * count, np.int64), np.empty(3 * count, np.bool_), 0
    for node in range(1, count):
        this = nodes[node]
        if not held[this.parent] or this.depth > len(emitted):
            continue
        held[node] = this.token == emitted[this.depth - 1]
        first = first_choice_kind(this.depth) if this.model_kind != NONE and this.rank == 0 else NONE
        for kind in (np.int64(this.copy_kind), np.int64(this.model_kind), np.int64(first)):
            if kind != NONE:
                kinds[found], right[found] = kind, held[node]
                found += 1
    return kinds[:found], right[:found]

"""The nodes of a draft tree: how candidates are added, which of them pay for their rows, and which of them held.

After EAGLE-2 (Li et al. 2024, §4). Beyond that, probabilities are measured (`acceptance`), and the costs of rows and
steps decide on the size of the tree.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.acceptance import PREDICTED, copy_kind, first_choice_kind, model_kind
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


class Costs(NamedTuple):
    """Seconds: of a pass by draft nodes (`Budget.cost_by_nodes`), and of the model that drafts: once for a draft, and
    for each of its steps, a level of the tree each.
    """

    by_nodes: Float64  # [nodes + 1]
    step: float = 0.0  # of one step, this sequence's share
    step_row: float = 0.0  # of one more row in it
    draft: float = 0.0  # before the first step


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
    nodes: Nodes, count: int, frontier: Int64, level: Level, growth: Growth, costs: Costs, rates: Float64
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
                this.given = rates[this.model_kind]
    for node in range(1, count):
        nodes[node].chance = nodes[nodes[node].parent].chance * nodes[node].given
    return count, _next_frontier(nodes, count, newest[: 0 if growth.ends else found], growth, costs, rates)


@relaxed
def _next_frontier(nodes: Nodes, count: int, newest: Int64, growth: Growth, costs: Costs, rates: Float64) -> Int64:
    """The likeliest of the newest nodes. Each has to pay for its row of the model, and all together for its step."""
    if len(newest) == 0:
        return newest
    taken, emitted, seconds = chosen(nodes, count, growth.most, growth.steps, costs)
    next_choice = rates[first_choice_kind(nodes[newest[0]].depth + 1)]
    row = next_row(costs.by_nodes, len(taken))
    best, gain, kept = likeliest(nodes, newest, growth.width), 0.0, 0
    for node in best:
        worth = nodes[node].chance * next_choice * seconds / emitted - costs.step_row - row
        if worth > 0.0:
            best[kept] = node
            gain += worth
            kept += 1
    return best[: kept if gain > costs.step else 0]


@relaxed
def pays(nodes: Nodes, count: int, depth: int, most: int, costs: Costs, rates: Float64) -> bool:
    """Whether a chain of a model's first choices is expected to gain more than it costs. What the caller predicts
    leaves it less to gain.
    """
    chance, emitted, seconds = 1.0, 1.0, costs.by_nodes[0]
    for node in range(1, count):
        if nodes[node].copy == PREDICTED and nodes[node].parent == 0:
            chance -= nodes[node].chance
    if chance < 1.0:
        _, emitted, seconds = chosen(nodes, count, most, 0, costs)
    firsts = np.empty(depth)
    for place in range(depth):
        firsts[place] = rates[first_choice_kind(place + 1)]
    return best_depth(firsts, costs, chance, emitted, seconds) > 0


@relaxed
def best_depth(rates: Float64, costs: Costs, chance: float, emitted: float, seconds: float) -> int:
    """The tokens of the chain that gains most by what it costs, 0 where none gains. `rates` [tokens]: how often one
    holds after those before. Without the chain a pass emits `emitted` tokens in `seconds`, and leaves it the `chance`.
    """
    best, most, held, gained = 0, 0.0, chance, 0.0
    for depth in range(1, min(len(rates), len(costs.by_nodes) - 1) + 1):
        held *= rates[depth - 1]
        gained += held
        more = costs.by_nodes[depth] - costs.by_nodes[0] + costs.draft + depth * (costs.step + costs.step_row)
        worth = gained * seconds - emitted * more
        if worth > most:
            best, most = depth, worth
    return best


@relaxed
def next_row(by_nodes: Float64, taken: int) -> float:
    """The lowest average cost of a further row after `taken` draft rows; after the last row, the cost of that one."""
    least, before = np.inf, min(taken, len(by_nodes) - 2)
    for rows in range(before + 1, len(by_nodes)):
        least = min(least, (by_nodes[rows] - by_nodes[before]) / (rows - before))
    return least


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
def chosen(nodes: Nodes, count: int, most: int, steps: int, costs: Costs) -> tuple[Int64, float, float]:
    """The likeliest nodes, as many as bring the most tokens a second; the tokens that a pass over them emits; the
    seconds of that pass.

    Every number of nodes is tried: where the second row costs more than later ones, two may pay where one does not.
    """
    drafting = steps * costs.step + (costs.draft if steps else 0.0)
    taken, emitted, seconds = 0, 1.0, costs.by_nodes[0] + drafting
    best, expected = likeliest(nodes, np.arange(1, count), min(most, len(costs.by_nodes) - 1)), 1.0
    for place in range(len(best)):
        expected += nodes[best[place]].chance
        together = costs.by_nodes[place + 1] + drafting
        if expected * seconds > emitted * together:
            taken, emitted, seconds = place + 1, expected, together
    return best[:taken], emitted, seconds


@relaxed
def ordered(nodes: Nodes, count: int, best: Int64) -> tuple[Int64, Int64]:
    """The root and `best` in the order of a tree, and their parents' places in it. The path of first choices comes
    first: its rows then lie in one run with those of the committed tokens.
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

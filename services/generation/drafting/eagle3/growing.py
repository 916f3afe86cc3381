"""How draft trees grow: by cumulative probability, then ranked again, and cut to what pays.

After EAGLE-2 (Li et al. 2024, §4). What is added: probabilities are those that were measured, and the size of the tree
follows from what rows and steps cost. `growth.Forest` makes the arrays of trees.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.eagle3.confidence import Float64, acceptance, first_choice, record
from services.generation.drafting.relaxed import relaxed

Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]


class Tree(NamedTuple):
    """The arrays of one tree; their columns are named below."""

    nodes: Int64  # [n, 7]
    odds: Float64  # [n, 3]
    state: Int64  # [4]
    frontier: Int64  # [width] nodes
    sources: Int64  # [width] places of their parents in the frontier before
    bounds: Int64  # [3]
    prices: Float64  # [4]
    counts: Float64  # see `confidence`


TOKEN, PARENT, DEPTH, RANK, RUN, SLOT, COPIED = range(7)  # of nodes; RUN and SLOT are those of `rounds.place`
CHANCE, SHARE, GIVEN = range(3)
"""Of odds: that all of a node's path holds; what the head gave it; that it holds if its parent does."""
NODES, STEPS, FRONTIER, ENTRIES = range(4)  # of state: how many there are; entries in the head's cache
DEEPEST, WIDTH, MOST = range(3)  # of bounds: see `shape.DraftShape`
PER_TOKEN, PER_ROW, PER_STEP, PER_STEP_ROW = range(4)  # of prices: see `growth.Prices`
_MARGIN = 1.15  # a draft has to gain: what is read, walked and kept for it is in no price
FOREIGN = -1.0  # the share of a candidate that the head has said nothing about


@relaxed
def worth_starting(
    deepest: int, per_token: float, per_row: float, per_step: float, counts: Float64, beside: float
) -> bool:
    """Whether a chain of first choices, as often as those have held, gains more than it costs at some depth.

    `beside` are tokens that are expected to hold without the head: where it would say no more, it need not run.
    """
    chance, emitted, seconds, pays = 1.0, 1.0, per_token, False
    for depth in range(1, deepest + 1):
        chance *= first_choice(counts, depth)
        emitted += chance
        seconds += per_step + per_row
        pays = pays or emitted * per_token > seconds * _MARGIN
    return pays and emitted - 1.0 > beside


@relaxed
def child(tree: Tree, parent: int, token: int) -> int:
    """The node of a token below a parent, made where there is none."""
    nodes, state = tree.nodes, tree.state
    for node in range(parent + 1, state[NODES]):
        if nodes[node, PARENT] == parent and nodes[node, TOKEN] == token:
            return node
    node = state[NODES]
    nodes[node, TOKEN], nodes[node, PARENT], nodes[node, DEPTH] = token, parent, nodes[parent, DEPTH] + 1
    nodes[node, COPIED] = 0
    state[NODES] = node + 1
    return int(node)


@relaxed
def graft(tree: Tree, tokens: Int64, parents: Int64, chances: Float64) -> None:
    """Candidates from elsewhere, before the head's own, with the chance of each node's path; node 0 is the root."""
    places = np.zeros(len(tokens), np.int64)
    for i in range(1, len(tokens)):
        node = child(tree, places[parents[i]], tokens[i])
        tree.nodes[node, COPIED], tree.nodes[node, RANK] = 1, 0
        tree.odds[node, CHANCE], tree.odds[node, SHARE] = chances[i], FOREIGN
        tree.odds[node, GIVEN] = chances[i] / max(chances[parents[i]], 1e-9)
        places[i] = node


@relaxed
def copies_below(tree: Tree, asked: Int64) -> None:
    """Copies below the frontier's nodes, whose shares the head is asked for; asked [frontier or more, most], -1 for
    none.
    """
    nodes, state, frontier = tree.nodes, tree.state, tree.frontier
    for line in range(state[FRONTIER]):
        asked[line] = -1
        found = 0
        for node in range(frontier[line] + 1, state[NODES]):
            if nodes[node, PARENT] == frontier[line] and found < asked.shape[1]:
                asked[line, found] = nodes[node, TOKEN]
                found += 1


@relaxed
def take(tree: Tree, tokens: Int64, shares: Float32) -> None:
    """The children of the frontier's nodes, best first, then the copies that were asked for; and the next frontier:
    empty where growing has ended.

    tokens and shares [frontier, the tree's width and more]; a token below 0 is none, a share below 0 is not known.
    """
    nodes, odds, state = tree.nodes, tree.odds, tree.state
    frontier, bounds, counts = tree.frontier, tree.bounds, tree.counts
    depth = nodes[frontier[0], DEPTH] + 1
    newest = np.empty(state[FRONTIER] * tokens.shape[1], np.int64)
    found = 0
    widest = frontier.shape[0]
    state[STEPS] += 1
    for line in range(state[FRONTIER]):
        for rank in range(tokens.shape[1]):
            said = rank < bounds[WIDTH]
            if tokens[line, rank] < 0 or not (said or rank >= widest):
                continue
            before = state[NODES]
            node = child(tree, frontier[line], tokens[line, rank])
            share = np.float64(shares[line, rank])
            if node < before and odds[node, SHARE] != FOREIGN:
                continue
            newest[found] = node
            found += 1
            if share < 0.0:
                continue
            odds[node, SHARE], nodes[node, RANK] = share, rank
            odds[node, GIVEN] = acceptance(counts, nodes[node, COPIED], share, depth)
    for node in range(1, state[NODES]):
        odds[node, CHANCE] = odds[nodes[node, PARENT], CHANCE] * odds[node, GIVEN]
    _move_on(tree, newest[:found], depth + 1)


@relaxed
def _move_on(tree: Tree, newest: Int64, depth: int) -> None:
    """The likeliest of the newest nodes, those that are worth the head's row and all together worth its step."""
    nodes, odds, state, frontier, sources = tree.nodes, tree.odds, tree.state, tree.frontier, tree.sources
    bounds, prices, counts = tree.bounds, tree.prices, tree.counts
    before, expanded = frontier.copy(), state[FRONTIER]
    state[FRONTIER] = 0
    if depth > bounds[DEEPEST] or len(newest) == 0:
        return
    _, emitted, seconds = chosen(tree)
    next_choice, row = first_choice(counts, depth), prices[PER_STEP_ROW] + prices[PER_ROW]
    best, gain, kept = likeliest(odds, newest, bounds[WIDTH]), 0.0, 0
    for node in best:
        worth = odds[node, CHANCE] * next_choice * seconds / emitted - row
        if worth > 0.0:
            frontier[kept] = node
            gain += worth
            kept += 1
    if gain <= prices[PER_STEP]:
        return
    state[FRONTIER] = kept
    for line in range(kept):
        for source in range(expanded):
            if before[source] == nodes[frontier[line], PARENT]:
                sources[line] = source


@relaxed
def likeliest(odds: Float64, nodes: Int64, most: int) -> Int64:
    """Up to `most` of the nodes by falling chance, earlier ones first among equals."""
    best, found = np.empty(min(most, len(nodes)), np.int64), 0
    for node in nodes:
        if found == len(best) and (found == 0 or odds[best[found - 1], CHANCE] >= odds[node, CHANCE]):
            continue
        at = min(found, len(best) - 1)
        while at > 0 and odds[best[at - 1], CHANCE] < odds[node, CHANCE]:
            best[at] = best[at - 1]
            at -= 1
        best[at] = node
        found = min(found + 1, len(best))
    return best


@relaxed
def chosen(tree: Tree) -> tuple[Int64, float, float]:
    """Nodes that pay for their rows, best first; the tokens a pass over them emits; the seconds it takes."""
    odds, state, bounds, prices = tree.odds, tree.state, tree.bounds, tree.prices
    emitted, seconds = 1.0, prices[PER_TOKEN] + state[STEPS] * prices[PER_STEP]
    best, taken = likeliest(odds, np.arange(1, state[NODES]), bounds[MOST]), 0
    for node in best:
        if not odds[node, CHANCE] * seconds > emitted * prices[PER_ROW]:
            break
        emitted += odds[node, CHANCE]
        seconds += prices[PER_ROW]
        taken += 1
    return best[:taken], emitted, seconds


@relaxed
def ordered(tree: Tree) -> tuple[Int64, Int64]:
    """Tokens and parents of the nodes that pay, the path of first choices in front: it then lies in one run with the
    committed tokens.
    """
    nodes, odds, state = tree.nodes, tree.odds, tree.state
    best, _, _ = chosen(tree)
    left = np.zeros(state[NODES], np.bool_)
    for node in best:
        left[node] = True
    order, place = np.zeros(len(best) + 1, np.int64), np.zeros(state[NODES], np.int64)
    filled, tip = 1, 0
    while tip >= 0:
        parent, tip = tip, -1
        for node in range(parent + 1, state[NODES]):
            below = left[node] and nodes[node, PARENT] == parent
            if below and (tip < 0 or odds[node, CHANCE] > odds[tip, CHANCE]):
                tip = node
        if tip >= 0:
            order[filled], left[tip] = tip, False
            filled += 1
    for node in range(1, state[NODES]):
        if left[node]:
            order[filled] = node
            filled += 1
    parents = np.full(len(order), -1, np.int64)
    for i in range(1, len(order)):
        place[order[i]] = i
        parents[i] = place[nodes[order[i], PARENT]]
    return nodes[order, TOKEN], parents


@relaxed
def judge(tree: Tree, emitted: Int64) -> None:
    """Compare all candidates, verified or not, with what was emitted after the root."""
    nodes, odds, state, counts = tree.nodes, tree.odds, tree.state, tree.counts
    held = np.zeros(state[NODES], np.bool_)
    held[0] = True
    for node in range(1, state[NODES]):
        depth = nodes[node, DEPTH]
        if not held[nodes[node, PARENT]] or depth > len(emitted):
            continue
        held[node] = nodes[node, TOKEN] == emitted[depth - 1]
        if odds[node, SHARE] != FOREIGN:
            record(counts, nodes[node, COPIED], odds[node, SHARE], nodes[node, RANK], depth, held[node])

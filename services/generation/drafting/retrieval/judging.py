"""How often what was retrieved holds, and so which of it is worth a row.

A node is told apart by the tier that it is from, by the length of the match that led to it, by its rank among the
children of its parent, and by depth. Acceptance is counted in arrays: beside a small model even a few calls are time.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from services.generation.drafting.retrieval.trie import Trie
from services.generation.engine.tree import TokenTree

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

OWN, NEAR, FAR = range(3)  # tiers: the request's own text, a passage near it, anything else in its stores
_LENGTHS = np.array((1, 2, 3, 5, 8))  # of matches, up to which they are told apart; beyond, the last class
_PRIORS = np.array((
    (0.22, 0.36, 0.52, 0.68, 0.85, 0.93), (0.15, 0.25, 0.35, 0.55, 0.75, 0.90), (0.15, 0.25, 0.32, 0.45, 0.72, 0.85),
))  # acceptance expected of each tier after a match of each class  # fmt: skip
_RANKS = np.array((1.0, 0.35, 0.1))  # times as much is expected of each rank; the last one stands for all others
_DEEPEST = 8  # depths from here on share one rate
_SHARED_WEIGHT, _OWN_WEIGHT = 8.0, 4.0  # observations that the prior and the shared rate count for
_SHARED_MEMORY, _OWN_MEMORY = 0.998, 0.99  # of the counts, per observation, so that a rate follows the text

COUNTS = (*_PRIORS.shape, len(_RANKS), _DEEPEST + 1, 2)  # tiers, classes, ranks, depths, (accepted, tried)


class Rates:
    """Of one sequence: the probability that a node holds if its parent does. `shared` counts are those of all."""

    def __init__(self, shared: Float64) -> None:
        """`shared` is of shape COUNTS."""
        self._own, self._shared = np.zeros(COUNTS), shared

    def first(self, length: int) -> float:
        """Of what follows the best match in the own text, which has this length."""
        return float(_rate(self._own, self._shared, OWN, length, 0, 1))

    def tree(self, root: int, trie: Trie, most: int, deepest: int, least: float) -> TokenTree:
        """The nodes that hold with a probability of `least`: at most so many, none deeper than `deepest`."""
        tokens, parents = _chosen(
            trie.tokens, trie.parents, trie.depths, trie.tiers, trie.lengths, self._own, self._shared, most, deepest,
            least,
        )  # fmt: skip
        return TokenTree((root, *tokens.tolist()), (-1, *parents.tolist()))

    def judge(self, waiting: Waiting, text: Int64) -> bool:
        """Count what is known by now, verified or not; False once a depth held nothing of what was emitted."""
        trie = waiting.trie
        return bool(_judge(
            trie.tokens, trie.parents, trie.tiers, trie.lengths, waiting.at, self._own, self._shared, text,
        ))  # fmt: skip


class Waiting:
    """A trie that is compared with what is emitted."""

    def __init__(self, trie: Trie, place: int) -> None:
        """`place` is the index in the sequence of its first tokens."""
        self.trie = trie
        self.at = np.array((-1, place, 1))  # the last node that held, and the place and the depth below it


@njit(nogil=True, cache=True)
def _chosen(
    tokens: Int64, parents: Int64, depths: Int64, tiers: Int64, lengths: Int64, own: Float64, shared: Float64,
    most: int, deepest: int, least: float,
) -> tuple[Int64, Int64]:  # fmt: skip
    count = tokens.shape[0]
    out, above = np.empty(min(most, count), np.int64), np.empty(min(most, count), np.int64)
    chances, place = np.ones(count + 1), np.full(count + 1, -1, np.int64)  # the last entries are the root's
    place[count], kept = 0, 0
    ranks = _ranks(parents)
    for node in range(count):
        parent = parents[node] if parents[node] >= 0 else count
        if kept == out.shape[0] or place[parent] < 0 or depths[node] > deepest:
            continue
        rate = _rate(own, shared, tiers[node], lengths[node], ranks[node], depths[node])
        chances[node] = chances[parent] * rate
        if chances[node] < least:
            continue
        out[kept], above[kept] = tokens[node], place[parent]
        kept += 1
        place[node] = kept
    return out[:kept], above[:kept]


@njit(nogil=True, cache=True)
def _judge(
    tokens: Int64, parents: Int64, tiers: Int64, lengths: Int64, at: Int64, own: Float64, shared: Float64, text: Int64
) -> bool:
    ranks = _ranks(parents)
    while at[1] < text.shape[0]:
        held = -1
        for node in range(tokens.shape[0]):
            if parents[node] != at[0]:
                continue
            right = tokens[node] == text[at[1]]
            if right:
                held = node
            seen = tiers[node], _class_of(lengths[node]), ranks[node], min(at[2], _DEEPEST)
            _record(own[seen], right, _OWN_MEMORY)
            _record(shared[seen], right, _SHARED_MEMORY)
        if held < 0:
            return False
        at[0], at[1], at[2] = held, at[1] + 1, at[2] + 1
    return bool((parents == at[0]).any())


@njit(nogil=True, cache=True)
def _ranks(parents: Int64) -> Int64:
    """Of each node among the children of its parent, which come best first; the last rank is for all others."""
    born, ranks = np.zeros(parents.shape[0] + 1, np.int64), np.empty(parents.shape[0], np.int64)
    for node in range(parents.shape[0]):
        ranks[node] = min(born[parents[node]], _RANKS.shape[0] - 1)  # parent -1 is the last entry
        born[parents[node]] += 1
    return ranks


@njit(nogil=True, cache=True)
def _class_of(length: int) -> int:
    kind = 0
    while kind < _LENGTHS.shape[0] and length > _LENGTHS[kind]:
        kind += 1
    return kind


@njit(nogil=True, cache=True)
def _rate(own: Float64, shared: Float64, tier: int, length: int, rank: int, depth: int) -> float:
    seen = tier, _class_of(length), rank, min(depth, _DEEPEST)
    accepted, tried = shared[seen]
    rate = (accepted + _SHARED_WEIGHT * _prior(tier, length, rank, depth)) / (tried + _SHARED_WEIGHT)
    accepted, tried = own[seen]
    return float((accepted + _OWN_WEIGHT * rate) / (tried + _OWN_WEIGHT))


@njit(nogil=True, cache=True)
def _prior(tier: int, length: int, rank: int, depth: int) -> float:
    """With every token that holds the match has grown by one."""
    return float(_PRIORS[tier, _class_of(length + depth - 1)] * _RANKS[rank])


@njit(nogil=True, cache=True)
def _record(seen: Float64, held: bool, memory: float) -> None:
    seen[0] = seen[0] * memory + (1.0 if held else 0.0)
    seen[1] = seen[1] * memory + 1.0

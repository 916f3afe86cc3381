"""Continuations merged: what they have in common stands once, and what most of them say comes first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Trie:
    """Nodes in the order in which a budget takes them; a node's parent is always before it.

    Rank is tier first (0 is the nearest source), then count, then depth, then token id: the same continuations give the
    same trie, in whatever order they came. tokens, parents (-1: right under the context), depths (from 1), counts,
    tiers, lengths (longest match that led to the node): all [nodes].
    """

    tokens: Int64
    parents: Int64
    depths: Int64
    counts: Int64
    tiers: Int64
    lengths: Int64

    def __len__(self) -> int:
        return len(self.tokens)


def merge(continuations: Int64, tiers: Int64, lengths: Int64, most: int) -> Trie:
    """The `most` best nodes of the trie of continuations [rows, depth], -1 after each one's end.

    tiers and lengths [rows] say where a continuation is from and how long a match it follows.
    """
    order = np.lexsort((lengths, tiers, *continuations.T[::-1]))
    nodes = _merged(continuations[order], tiers[order], lengths[order])
    tokens, parents, depths, counts, best_tiers, best_lengths = nodes
    rank = np.lexsort((np.arange(len(tokens)), tokens, depths, -counts, best_tiers))[:most]
    place = np.full(len(tokens) + 1, -1, np.int64)  # the last entry is for parent -1
    place[rank] = np.arange(len(rank))
    return Trie(tokens[rank], place[parents[rank]], depths[rank], counts[rank], best_tiers[rank], best_lengths[rank])


@njit(nogil=True, cache=True)
def _merged(rows: Int64, tiers: Int64, lengths: Int64) -> tuple[Int64, Int64, Int64, Int64, Int64, Int64]:
    """Nodes of sorted rows, depth first: a row shares with the one before it what they begin with."""
    depth = rows.shape[1]
    out = np.zeros((6, rows.size), np.int64)
    path = np.zeros(depth, np.int64)
    count = 0
    for row in range(rows.shape[0]):
        shared = 0
        while row and shared < depth and rows[row, shared] >= 0 and rows[row, shared] == rows[row - 1, shared]:
            shared += 1
        for i in range(depth):
            if rows[row, i] < 0:
                break
            if i >= shared:
                path[i] = count
                out[0, count] = rows[row, i]
                out[1, count] = path[i - 1] if i else -1
                out[2, count] = i + 1
                out[4, count] = tiers[row]
                out[5, count] = lengths[row]
                count += 1
            node = path[i]
            out[3, node] += 1
            out[4, node] = min(out[4, node], tiers[row])
            out[5, node] = max(out[5, node], lengths[row])
    return out[0, :count], out[1, :count], out[2, :count], out[3, :count], out[4, :count], out[5, :count]

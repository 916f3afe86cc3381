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
    return Trie(*_merged(continuations, tiers, lengths, most))


@njit(nogil=True, cache=True)
def _merged(rows: Int64, tiers: Int64, lengths: Int64, most: int) -> tuple[Int64, Int64, Int64, Int64, Int64, Int64]:
    nodes = _nodes(rows, tiers, lengths, _sorted(rows))
    best = _ranked(nodes, most)
    place = np.full(nodes.shape[1] + 1, -1, np.int64)  # the last entry is for parent -1
    for rank in range(best.shape[0]):
        place[best[rank]] = rank
    return nodes[0, best], place[nodes[1, best]], nodes[2, best], nodes[3, best], nodes[4, best], nodes[5, best]


@njit(nogil=True, cache=True)
def _sorted(rows: Int64) -> Int64:
    """The order of the rows by their tokens: each is put in where it belongs among those before it."""
    order = np.zeros(rows.shape[0], np.int64)
    for row in range(rows.shape[0]):
        low, high = 0, row
        while low < high:
            middle = (low + high) // 2
            if _above(rows[order[middle]], rows[row]):
                high = middle
            else:
                low = middle + 1
        for i in range(row, low, -1):
            order[i] = order[i - 1]
        order[low] = row
    return order


@njit(nogil=True, cache=True)
def _above(one: Int64, other: Int64) -> bool:
    for i in range(one.shape[0]):
        if one[i] != other[i]:
            return bool(one[i] > other[i])
    return False


@njit(nogil=True, cache=True)
def _nodes(rows: Int64, tiers: Int64, lengths: Int64, order: Int64) -> Int64:
    """Tokens, parents, depths, counts, tiers and lengths [6, nodes] of the trie, depth first: a row shares with the one
    before it what they begin with.
    """
    depth = rows.shape[1]
    out = np.zeros((6, rows.size), np.int64)
    path = np.zeros(depth, np.int64)
    count, last = 0, -1
    for row in order:
        shared = 0
        while last >= 0 and shared < depth and rows[row, shared] >= 0 and rows[row, shared] == rows[last, shared]:
            shared += 1
        last = row
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
    return out[:, :count]


@njit(nogil=True, cache=True)
def _ranked(nodes: Int64, most: int) -> Int64:
    """The `most` best nodes, best first; of equals the one that comes first."""
    best, found = np.zeros(most + 1, np.int64), 0
    for node in range(nodes.shape[1]):
        low, high = 0, found
        while low < high:
            middle = (low + high) // 2
            if _before(nodes, node, best[middle]):
                high = middle
            else:
                low = middle + 1
        if low == most:
            continue
        for i in range(min(found, most - 1), low, -1):
            best[i] = best[i - 1]
        best[low] = node
        found = min(found + 1, most)
    return best[:found]


@njit(nogil=True, cache=True)
def _before(nodes: Int64, one: int, other: int) -> bool:
    if nodes[4, one] != nodes[4, other]:
        return bool(nodes[4, one] < nodes[4, other])
    if nodes[3, one] != nodes[3, other]:
        return bool(nodes[3, one] > nodes[3, other])
    if nodes[2, one] != nodes[2, other]:
        return bool(nodes[2, one] < nodes[2, other])
    return bool(nodes[0, one] < nodes[0, other])

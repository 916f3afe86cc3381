"""The Merkle tree straight from the definitions of RFC 6962 §2.1: recursive, O(n), with nothing clever in it."""

from functools import lru_cache

from ledger.errors import NotFound
from ledger.tree.merkle import EMPTY_ROOT, node_hash


class NaiveTree:
    def __init__(self, leaves: list[bytes] | None = None) -> None:
        self.leaves = list(leaves or [])
        self._node = lru_cache(maxsize=None)(self._compute)  # a range of leaves never changes once it is there

    def root(self, start: int, end: int) -> bytes:
        """MTH(D[start:end])."""
        return self._node(start, end) if end > start else EMPTY_ROOT

    def _compute(self, start: int, end: int) -> bytes:
        if end - start == 1:
            return self.leaves[start]
        middle = start + split(end - start)
        return node_hash(self.root(start, middle), self.root(middle, end))

    def path(self, index: int, start: int, end: int) -> list[bytes]:
        """PATH(index - start, D[start:end])."""
        if end - start == 1:
            return []
        middle = start + split(end - start)
        if index < middle:
            return [*self.path(index, start, middle), self.root(middle, end)]
        return [*self.path(index, middle, end), self.root(start, middle)]

    def subproof(self, old: int, start: int, end: int, whole: bool) -> list[bytes]:
        """SUBPROOF(old - start, D[start:end], whole)."""
        if old == end:
            return [] if whole else [self.root(start, end)]
        middle = start + split(end - start)
        if old <= middle:
            return [*self.subproof(old, start, middle, whole), self.root(middle, end)]
        return [*self.subproof(old, middle, end, False), self.root(start, middle)]


def split(width: int) -> int:
    """The largest power of two smaller than `width`."""
    power = 1
    while power * 2 < width:
        power *= 2
    return power


class NaiveHashes:
    """A HashReader straight from the definition."""

    def __init__(self, naive: NaiveTree) -> None:
        self.naive = naive

    def subtree(self, level: int, number: int) -> bytes:
        start, end = number << level, (number + 1) << level
        if end > len(self.naive.leaves):
            raise NotFound(f"{level}/{number}")
        return self.naive.root(start, end)

"""One proof for many leaves of an RFC 6962 tree, and the proof that nothing in an index range was left out. Pure.

The tree is walked from the root, left before right. A subtree without a wanted leaf is named by its hash and not
entered; a wanted leaf is not named: the verifier has it. So the proof holds each needed hash once, and no hash that can
be computed: for m neighbours O(m + log size) work and O(log size) hashes, for the whole tree none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ledger.errors import ProofError
from ledger.tree.merkle import EMPTY_ROOT, Frontier, HashReader, node_hash, range_root, split


def multi_proof(indexes: Iterable[int], size: int, reader: HashReader) -> tuple[bytes, ...]:
    """The hashes that lead from the leaves at `indexes` to the root of the first `size` leaves. Empty for no indexes.

    Raises ProofError if an index is not below `size`, NotFound if the reader does not hold `size` leaves.
    """
    return _prove(sorted(set(indexes)), size, reader)


def range_proof(start: int, end: int, size: int, reader: HashReader) -> tuple[bytes, ...]:
    """`multi_proof` of all indexes in [start, end): at most 2·log2(size) hashes. Raises as `multi_proof` does."""
    return _prove(range(start, end), size, reader)


def verify_multi_proof(leaves: Mapping[int, bytes], size: int, root: bytes, proof: Sequence[bytes]) -> None:
    """Raises ProofError unless the tree of `size` leaves under `root` has these leaf hashes at these indexes.

    Other indexes are not proven. Without leaves only the empty proof is valid; the root of an empty tree is known.
    """
    if size == 0 and root != EMPTY_ROOT:
        raise ProofError("the tree of no entries has another root")
    indexes = sorted(leaves)
    _verify(indexes, [leaves[index] for index in indexes], size, root, proof)


def verify_range_proof(
    leaves: Sequence[bytes], start: int, end: int, size: int, root: bytes, proof: Sequence[bytes]
) -> None:
    """Raises ProofError unless `leaves` are the leaf hashes of the tree at start, start + 1, …, end - 1, all of them.

    So nothing was left out: no leaf of [start, end) is missing, moved or doubled.
    """
    if len(leaves) != end - start:
        raise ProofError(f"{len(leaves)} leaves are not all of [{start}, {end})")
    _verify(range(start, end), leaves, size, root, proof)


def _prove(indexes: Sequence[int], size: int, reader: HashReader) -> tuple[bytes, ...]:
    _check_indexes(indexes, size)
    return tuple(range_root(start, end, reader) for start, end in _unentered(indexes, 0, size)) if indexes else ()


def _unentered(indexes: Sequence[int], start: int, end: int) -> Iterator[tuple[int, int]]:
    """The subtrees of [start, end), left before right, without any of `indexes`, all within [start, end)."""
    if not indexes:
        yield start, end
    elif len(indexes) < end - start:
        middle = start + split(end - start)
        cut = bisect_left(indexes, middle)
        yield from _unentered(indexes[:cut], start, middle)
        yield from _unentered(indexes[cut:], middle, end)


def _verify(indexes: Sequence[int], leaves: Iterable[bytes], size: int, root: bytes, proof: Sequence[bytes]) -> None:
    _check_indexes(indexes, size)
    tree = GrowingTree(proof=proof)
    for index, leaf in zip(indexes, leaves, strict=True):
        tree.add(index, leaf)
    tree.check(size, root)


class GrowingTree:
    """A tree whose leaves are added by rising index, kept as the hashes of its complete subtrees, so that memory does
    not grow. The hashes of a multi-proof replace the missing leaves.
    """

    def __init__(self, before: Frontier | None = None, proof: Iterable[bytes] = ()) -> None:
        """Begin with the tree of `before`, whose leaves are not added again."""
        self.size = 0 if before is None else before.size
        """The leaves up to the last added leaf."""
        self._hashes = [] if before is None else list(before.hashes)
        self._proof = iter(proof)
        self._too_short = False

    def add(self, index: int, node: bytes, level: int = 0) -> None:
        """Add the hash of the leaf at `index`, or of the complete subtree of 2^`level` leaves that begins there."""
        while self.size < index:
            self._push(self._next(), min(_alignment(self.size), (index - self.size).bit_length() - 1))
        self._push(node, level)

    def frontier(self) -> Frontier:
        return Frontier(self.size, tuple(self._hashes))

    def root(self) -> bytes:
        return self.frontier().root()

    def check(self, size: int, root: bytes) -> None:
        """Raises ProofError unless the leaves and the whole proof lead to this root of `size` leaves; without a leaf,
        for any proof. No leaf can be added after it.
        """
        some = self.size > 0
        while some and self.size < size:
            level = _alignment(self.size)
            if self.size + (1 << level) < size:
                self._push(self._next(), level)
            else:  # the node at the right edge, complete or not
                self._hashes.append(self._next())
                self.size = size
        if self._too_short:
            raise ProofError("the multi-proof is too short")
        if some and self.root() != root:
            raise ProofError("the multi-proof leads to another root")
        if next(self._proof, None) is not None:
            raise ProofError("the multi-proof is too long")

    def _push(self, node: bytes, level: int) -> None:
        place = self.size >> level
        self.size += 1 << level
        while place & 1:
            node, place = node_hash(self._hashes.pop(), node), place >> 1
        self._hashes.append(node)

    def _next(self) -> bytes:
        node = next(self._proof, None)
        self._too_short = self._too_short or node is None
        return node or EMPTY_ROOT


def _alignment(place: int) -> int:
    """The level of the largest complete subtree that begins at a place."""
    return (place & -place).bit_length() - 1 if place else 64


def _check_indexes(indexes: Sequence[int], size: int) -> None:
    if indexes and not 0 <= indexes[0] <= indexes[-1] < size:
        raise ProofError(f"entries {indexes[0]} to {indexes[-1]} are not all in a tree of {size} entries")

"""The RFC 6962 Merkle tree: hashes, the frontier that grows it, proofs and their verification. Pure.

A *complete subtree* (level, number) is the tree over the leaves [number·2^level, (number+1)·2^level); its hash never
changes once all those leaves exist.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ledger.errors import ProofError

HASH_BYTES = 32
EMPTY_ROOT = hashlib.sha256(b"").digest()
"""MTH({}), RFC 6962 §2.1."""


def leaf_hash(data: bytes) -> bytes:
    """SHA-256(0x00 ‖ data), RFC 6962 §2.1."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """SHA-256(0x01 ‖ left ‖ right), RFC 6962 §2.1."""
    return hashlib.sha256(b"\x01" + left + right).digest()


class HashReader(Protocol):
    """A source of the hashes of complete subtrees (tiles in a database, a list in a test)."""

    def subtree(self, level: int, number: int) -> bytes:
        """The 32-byte hash of a complete subtree. Raises NotFound if the tree is too small."""
        ...


@dataclass(frozen=True, slots=True)
class Frontier:
    """The state for appending: the hashes of the complete subtrees of `size` leaves, largest first."""

    size: int = 0
    hashes: tuple[bytes, ...] = ()

    @classmethod
    def at(cls, size: int, reader: HashReader) -> Frontier:
        """The frontier of the first `size` leaves, read from a tree of at least `size` leaves."""
        return cls(size, tuple(reader.subtree(level, number) for level, number in _cover(0, size)))

    def append(self, leaf: bytes) -> Frontier:
        """The frontier with one more leaf hash."""
        return self.extended((leaf,))

    def extended(self, leaves: Iterable[bytes]) -> Frontier:
        """The frontier with more leaf hashes."""
        hashes, size = list(self.hashes), self.size
        for grown in leaves:
            full = size
            while full & 1:
                grown = node_hash(hashes.pop(), grown)
                full >>= 1
            hashes.append(grown)
            size += 1
        return Frontier(size, tuple(hashes))

    def root(self) -> bytes:
        return _fold(self.hashes) if self.hashes else EMPTY_ROOT

    def to_document(self) -> dict[str, Any]:
        return {"size": self.size, "hashes": [each.hex() for each in self.hashes]}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Frontier:
        """Read the output of `to_document`, unchecked."""
        return cls(document["size"], tuple(bytes.fromhex(each) for each in document["hashes"]))


def tree_root(size: int, reader: HashReader) -> bytes:
    """MTH(D[0:size])."""
    return range_root(0, size, reader) if size else EMPTY_ROOT


def inclusion_proof(index: int, size: int, reader: HashReader) -> tuple[bytes, ...]:
    """PATH(index, D[0:size]), RFC 6962 §2.1.1: the siblings from the leaf up. Reads O(log size) subtrees.

    Raises ProofError if `index` is not below `size`, NotFound if the reader does not hold `size` leaves.
    """
    return inclusion_proofs((index,), size, reader)[0]


def inclusion_proofs(indexes: Sequence[int], size: int, reader: HashReader) -> list[tuple[bytes, ...]]:
    """The proofs of several leaves under one root; common nodes are computed once. Raises as `inclusion_proof`."""
    wanted = sorted(set(indexes))
    for index in wanted[:1] + wanted[-1:]:
        if not 0 <= index < size:
            raise ProofError(f"entry {index} is not in a tree of {size} entries")
    proofs: dict[int, tuple[bytes, ...]] = {}
    # Nodes of the recursion with wanted leaves below them: [start, end), their range in `wanted`, siblings so far.
    nodes: list[tuple[int, int, int, int, tuple[bytes, ...]]] = [(0, size, 0, len(wanted), ())] if wanted else []
    while nodes:
        start, end, low, high, proof = nodes.pop()
        if end - start == 1:
            proofs[start] = proof
            continue
        middle = start + split(end - start)
        cut = bisect_left(wanted, middle, low, high)
        if low < cut:
            nodes.append((start, middle, low, cut, (range_root(middle, end, reader), *proof)))
        if cut < high:
            nodes.append((middle, end, cut, high, (range_root(start, middle, reader), *proof)))
    return [proofs[index] for index in indexes]


def consistency_proof(old: int, new: int, reader: HashReader) -> tuple[bytes, ...]:
    """PROOF(old, D[0:new]), RFC 6962 §2.1.2; empty if `old` is 0 or `new`. Raises ProofError if `old` exceeds `new`,
    NotFound if the reader does not hold `new` leaves.
    """
    if not 0 <= old <= new:
        raise ProofError(f"a tree of {new} entries cannot contain one of {old}")
    if old in (0, new):
        return ()
    nodes = []
    start, end = 0, new
    while end != old:
        middle = start + split(end - start)
        if old <= middle:
            nodes.append((middle, end))
            end = middle
        else:
            nodes.append((start, middle))
            start = middle
    if start:  # SUBPROOF with b = false: the old tree's last complete subtree is not the whole old tree, so name it
        nodes.append((start, end))
    return tuple(range_root(low, high, reader) for low, high in reversed(nodes))


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Raises ProofError unless `proof` shows the leaf hash at `index` of the tree with `size` leaves and this root."""
    if proven_root(leaf, index, size, proof) != root:
        raise ProofError(f"the inclusion proof of entry {index} leads to another root")


def proven_root(leaf: bytes, index: int, size: int, proof: Sequence[bytes]) -> bytes:
    """The root that an inclusion proof leads to. Raises ProofError for a proof of another length.

    RFC 9162 §2.1.3.2, for the same tree as RFC 6962.
    """
    if not 0 <= index < size:
        raise ProofError(f"entry {index} is not in a tree of {size} entries")
    fn, sn, r = index, size - 1, leaf
    for p in proof:
        if sn == 0:
            raise ProofError("the inclusion proof is too long")
        if fn & 1 or fn == sn:
            r = node_hash(p, r)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            r = node_hash(r, p)
        fn, sn = fn >> 1, sn >> 1
    if sn != 0:
        raise ProofError("the inclusion proof is too short")
    return r


def verify_consistency(old: int, new: int, proof: Sequence[bytes], old_root: bytes, new_root: bytes) -> None:
    """Raises ProofError unless `proof` shows that the tree of `new` leaves only appended to the tree of `old` leaves.

    RFC 9162 §2.1.4.2; an empty old tree is a prefix of every tree, and equal sizes need equal roots.
    """
    if not 0 <= old <= new:
        raise ProofError(f"a tree of {new} entries cannot contain one of {old}")
    if old in (0, new):
        if proof or (old == new and old_root != new_root) or (old == 0 and old_root != EMPTY_ROOT):
            raise ProofError("the trees differ although one of them is empty or their sizes are equal")
        return
    path = list(proof) if old & (old - 1) else [old_root, *proof]
    if not path:
        raise ProofError("the consistency proof is too short")
    fn, sn = old - 1, new - 1
    while fn & 1:
        fn, sn = fn >> 1, sn >> 1
    fr = sr = path[0]
    for c in path[1:]:
        if sn == 0:
            raise ProofError("the consistency proof is too long")
        if fn & 1 or fn == sn:
            fr, sr = node_hash(c, fr), node_hash(c, sr)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            sr = node_hash(sr, c)
        fn, sn = fn >> 1, sn >> 1
    if sn != 0:
        raise ProofError("the consistency proof is too short")
    if fr != old_root or sr != new_root:
        raise ProofError(f"the tree of {new} entries does not contain the tree of {old} entries")


def split(width: int) -> int:
    """The largest power of two smaller than `width` (k of RFC 6962 §2.1)."""
    return 1 << ((width - 1).bit_length() - 1)


def _cover(start: int, end: int) -> Iterator[tuple[int, int]]:
    """The complete subtrees, largest first, into which the leaves [start, end) of a node of the recursion split."""
    while start < end:
        level = (end - start).bit_length() - 1
        yield level, start >> level
        start += 1 << level


def range_root(start: int, end: int, reader: HashReader) -> bytes:
    """The root of the leaves [start, end), which a node of the recursion covers. Raises NotFound."""
    width = end - start
    if width & (width - 1) == 0:  # one complete subtree, as most nodes are
        return reader.subtree(width.bit_length() - 1, start // width)
    return _fold([reader.subtree(level, number) for level, number in _cover(start, end)])


def _fold(hashes: Sequence[bytes]) -> bytes:
    root = hashes[-1]
    for left in reversed(hashes[:-1]):
        root = node_hash(left, root)
    return root

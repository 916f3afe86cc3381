import base64
import json
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ledger.errors import NotFound, ProofError
from ledger.tree.merkle import (
    EMPTY_ROOT,
    Frontier,
    consistency_proof,
    inclusion_proof,
    inclusion_proofs,
    leaf_hash,
    node_hash,
    tree_root,
    verify_consistency,
    verify_inclusion,
)
from ledger.tree.multiproof import multi_proof, range_proof, verify_multi_proof, verify_range_proof
from ledger.tree.tile import TILE_BYTES, TileEdge, TileHashes
from tests.examples import VECTORS, examples
from tests.unit.ledger.tree.naive_tree import NaiveHashes, NaiveTree

VECTOR = json.loads((VECTORS / "rfc6962/tree.json").read_bytes())
LEAVES = [leaf_hash(bytes.fromhex(data)) for data in VECTOR["leaves"]]
ROOTS = [bytes.fromhex(root) for root in VECTOR["roots"]]


class Tiles:
    """A TileReader over a dictionary."""

    def __init__(self, leaves: list[bytes] | None = None) -> None:
        self.by_place: dict[tuple[int, int], bytes] = {}
        self.edge = TileEdge()
        self.append(leaves or [])

    def append(self, leaves: list[bytes]) -> None:
        self.edge, changed = self.edge.append(leaves)
        self.by_place.update({(tile.level, tile.number): tile.hashes for tile in changed})

    def tile(self, level: int, number: int) -> bytes:
        if (level, number) not in self.by_place:
            raise NotFound(f"{level}/{number}")
        return self.by_place[level, number]


def test_leaf_and_node_hashes_are_those_of_the_reference() -> None:
    assert bytes.fromhex(VECTOR["empty_root"]) == EMPTY_ROOT
    for vector in VECTOR["leaf_hashes"]:
        assert leaf_hash(bytes.fromhex(vector["data"])).hex() == vector["hash"]
    vector = VECTOR["node_hash"]
    assert node_hash(bytes.fromhex(vector["left"]), bytes.fromhex(vector["right"])).hex() == vector["hash"]


def test_roots_are_those_of_the_reference() -> None:
    frontiers = list(accumulate(LEAVES, Frontier.append, initial=Frontier()))
    assert [frontier.root() for frontier in frontiers] == [EMPTY_ROOT, *ROOTS]
    for size, root in VECTOR["roots_of_u16le_leaves"].items():
        tiles = Tiles([leaf_hash(number.to_bytes(2, "little")) for number in range(int(size))])
        assert tree_root(int(size), TileHashes(tiles)) == base64.b64decode(root)


@pytest.mark.parametrize("vector", VECTOR["inclusion_proofs"])
def test_inclusion_proofs_are_those_of_the_reference(vector: dict[str, object]) -> None:
    index, size = int(vector["index"]), int(vector["size"])  # type: ignore[call-overload]
    proof = inclusion_proof(index, size, TileHashes(Tiles(LEAVES)))
    assert [node.hex() for node in proof] == vector["proof"]
    verify_inclusion(LEAVES[index], index, size, proof, ROOTS[size - 1])


@given(
    st.integers(1, len(LEAVES)).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n - 1), max_size=9)))
)
def test_proofs_made_together_are_those_made_one_by_one(drawn: tuple[int, list[int]]) -> None:
    size, indexes = drawn
    hashes = TileHashes(Tiles(LEAVES))
    expected = [inclusion_proof(index, size, hashes) for index in indexes]
    assert inclusion_proofs(indexes, size, hashes) == expected
    for index, proof in zip(indexes, expected, strict=True):
        verify_inclusion(LEAVES[index], index, size, proof, ROOTS[size - 1])


@pytest.mark.parametrize("indexes", [[-1], [0, 3], [3]])
def test_no_proof_is_made_of_what_is_not_in_the_tree(indexes: list[int]) -> None:
    with pytest.raises(ProofError):
        inclusion_proofs(indexes, 3, TileHashes(Tiles(LEAVES)))


@pytest.mark.parametrize("vector", VECTOR["consistency_proofs"])
def test_consistency_proofs_are_those_of_the_reference(vector: dict[str, object]) -> None:
    old, new = int(vector["old"]), int(vector["new"])  # type: ignore[call-overload]
    proof = consistency_proof(old, new, TileHashes(Tiles(LEAVES)))
    assert [node.hex() for node in proof] == vector["proof"]
    verify_consistency(old, new, proof, ROOTS[old - 1], ROOTS[new - 1])


class GrowingLog(RuleBasedStateMachine):
    """Frontier, tiles and proofs against a tree that is rehashed from the definition of RFC 6962 §2.1."""

    @initialize()
    def begin(self) -> None:
        self.naive = NaiveTree()
        self.frontier = Frontier()
        self.tiles = Tiles()
        self.hashes = TileHashes(self.tiles)  # kept over all steps, so that what it caches must stay true

    @rule(count=st.sampled_from([1, 1, 1, 2, 3, 7, 100, 255, 256, 257, 600]))
    def append(self, count: int) -> None:
        leaves = [leaf_hash(b"%d" % (len(self.naive.leaves) + number)) for number in range(count)]
        self.naive.leaves.extend(leaves)
        for leaf in leaves:
            self.frontier = self.frontier.append(leaf)
        self.tiles.append(leaves)

    @rule(data=st.data())
    def prove_inclusion(self, data: st.DataObject) -> None:
        if not self.naive.leaves:
            return
        size = data.draw(st.integers(1, len(self.naive.leaves)))
        index = data.draw(st.integers(0, size - 1))
        proof = inclusion_proof(index, size, self.hashes)
        assert list(proof) == self.naive.path(index, 0, size)
        verify_inclusion(self.naive.leaves[index], index, size, proof, self.naive.root(0, size))

    @rule(data=st.data())
    def prove_consistency(self, data: st.DataObject) -> None:
        new = data.draw(st.integers(0, len(self.naive.leaves)))
        old = data.draw(st.integers(0, new))
        proof = consistency_proof(old, new, self.hashes)
        assert list(proof) == (self.naive.subproof(old, 0, new, True) if old else [])
        verify_consistency(old, new, proof, self.naive.root(0, old), self.naive.root(0, new))

    @rule(data=st.data())
    def reopen(self, data: st.DataObject) -> None:
        size = len(self.naive.leaves)
        assert Frontier.at(size, self.hashes) == self.frontier
        assert TileEdge.at(size, self.tiles) == self.tiles.edge
        shorter = data.draw(st.integers(0, size))
        assert TileEdge.at(shorter, self.tiles) == TileEdge().append(self.naive.leaves[:shorter])[0]

    @invariant()
    def roots_agree(self) -> None:
        size = len(self.naive.leaves)
        assert self.frontier.size == size
        assert self.frontier.root() == tree_root(size, self.hashes) == self.naive.root(0, size)


GrowingLog.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=25, deadline=None)
TestGrowingLog = GrowingLog.TestCase


@settings(deadline=None)
@given(st.integers(1, 70), st.data())
def test_a_proof_for_anything_else_does_not_verify(size: int, data: st.DataObject) -> None:
    leaves = [leaf_hash(b"%d" % number) for number in range(size)]
    naive = NaiveTree(leaves)
    index = data.draw(st.integers(0, size - 1))
    proof, root = tuple(naive.path(index, 0, size)), naive.root(0, size)
    verify_inclusion(leaves[index], index, size, proof, root)
    other = (index + data.draw(st.integers(1, size - 1))) % size if size > 1 else size
    wrong: list[tuple[bytes, int, int, tuple[bytes, ...], bytes]] = [
        (leaves[index], other, size, proof, root),
        (leaf_hash(b"other"), index, size, proof, root),
        (leaves[index], index, size, (*proof, root), root),
        (leaves[index], index, size, (root, *proof), root),
        (leaves[index], index, size, proof, leaf_hash(b"other")),
        (leaves[index], -1, size, proof, root),
    ]
    if proof:
        at = data.draw(st.integers(0, len(proof) - 1))
        wrong.append((leaves[index], index, size, proof[:-1], root))
        wrong.append((leaves[index], index, size, (*proof[:at], leaf_hash(b"other"), *proof[at + 1 :]), root))
    for arguments in wrong:
        with pytest.raises(ProofError):
            verify_inclusion(*arguments)


@settings(deadline=None)
@given(st.integers(1, 70), st.data())
def test_a_rewritten_history_has_no_consistency_proof(new: int, data: st.DataObject) -> None:
    leaves = [leaf_hash(b"%d" % number) for number in range(new)]
    naive = NaiveTree(leaves)
    old = data.draw(st.integers(1, new))
    proof, roots = tuple(naive.subproof(old, 0, new, True)), (naive.root(0, old), naive.root(0, new))
    verify_consistency(old, new, proof, *roots)
    changed = data.draw(st.integers(0, old - 1))
    rewritten = NaiveTree([*leaves[:changed], leaf_hash(b"other"), *leaves[changed + 1 :]])
    attempts: list[tuple[tuple[bytes, ...], bytes, bytes]] = [
        (proof, roots[0], rewritten.root(0, new)),
        (tuple(rewritten.subproof(old, 0, new, True)), roots[0], rewritten.root(0, new)),
        ((*proof, roots[0]), *roots),
    ]
    if proof:
        attempts.append((proof[:-1], *roots))
        attempts.append(((), *roots))
    for attempt in attempts:
        with pytest.raises(ProofError):
            verify_consistency(old, new, *attempt)


def test_trees_that_do_not_exist_have_no_proofs() -> None:
    hashes = TileHashes(Tiles(LEAVES))
    for index, size in ((8, 8), (-1, 8), (0, 0)):
        with pytest.raises(ProofError):
            inclusion_proof(index, size, hashes)
    with pytest.raises(ProofError):
        consistency_proof(5, 4, hashes)
    with pytest.raises(ProofError):
        verify_consistency(5, 4, (), ROOTS[4], ROOTS[3])
    with pytest.raises(NotFound):
        inclusion_proof(0, 9, hashes)
    with pytest.raises(NotFound):
        TileEdge.at(9, Tiles(LEAVES))


def test_tiles_are_cut_as_c2sp_tlog_tiles_says() -> None:
    # "a tree of size 70,000 will be represented by 273 full level 0 tiles, one partial level 0 tile of width 112, one
    # full level 1 tile, one partial level 1 tile of width 17, and one partial level 2 tile of width 1"
    tiles = Tiles([leaf_hash(number.to_bytes(3, "big")) for number in range(70_000)]).by_place
    full = [place for place, hashes in tiles.items() if len(hashes) == TILE_BYTES]
    assert sorted(full) == [(0, number) for number in range(273)] + [(1, 0)]
    partial = {place: len(hashes) // 32 for place, hashes in tiles.items() if len(hashes) < TILE_BYTES}
    assert partial == {(0, 273): 112, (1, 1): 17, (2, 0): 1}


OTHER = leaf_hash(b"other")


def tree(size: int) -> tuple[NaiveTree, NaiveHashes]:
    naive = NaiveTree([leaf_hash(b"%d" % number) for number in range(size)])
    return naive, NaiveHashes(naive)


def expected(naive: NaiveTree, indexes: set[int], start: int, end: int) -> list[bytes]:
    """The proof from its definition: the roots of the largest subtrees without a wanted leaf, left before right."""
    if not any(start <= index < end for index in indexes):
        return [naive.root(start, end)]
    if end - start == 1:
        return []
    middle = start + max(1 << bit for bit in range(32) if 1 << bit < end - start)
    return expected(naive, indexes, start, middle) + expected(naive, indexes, middle, end)


@settings(deadline=None)
@given(st.integers(1, 200), st.data())
def test_a_multi_proof_is_the_one_of_its_definition_and_verifies(size: int, data: st.DataObject) -> None:
    naive, hashes = tree(size)
    indexes = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=size))
    proof = multi_proof(indexes, size, hashes)
    assert list(proof) == expected(naive, indexes, 0, size)
    verify_multi_proof({index: naive.leaves[index] for index in indexes}, size, naive.root(0, size), proof)


@settings(deadline=None)
@given(st.integers(1, 200), st.data())
def test_a_multi_proof_shows_no_other_leaf_place_or_root(size: int, data: st.DataObject) -> None:
    naive, hashes = tree(size)
    indexes = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=12))
    root, proof = naive.root(0, size), multi_proof(indexes, size, hashes)
    leaves = {index: naive.leaves[index] for index in indexes}
    victim = data.draw(st.sampled_from(sorted(indexes)))
    moved = data.draw(st.integers(0, size))
    attempts = [
        (leaves | {victim: OTHER}, size, root, proof),
        (leaves, size, OTHER, proof),
        (leaves, size, root, (*proof, OTHER)),
        (leaves | {size: OTHER}, size, root, proof),
        (leaves | {-1: OTHER}, size, root, proof),
    ]
    if size > 1:
        attempts.append(({index: leaf for index, leaf in leaves.items() if index != victim}, size, root, proof))
    if moved not in leaves:
        attempts.append(({(moved if i == victim else i): leaf for i, leaf in leaves.items()}, size, root, proof))
    if proof:
        at = data.draw(st.integers(0, len(proof) - 1))
        attempts.append((leaves, size, root, proof[:at] + proof[at + 1 :]))
        attempts.append((leaves, size, root, (*proof[:at], OTHER, *proof[at + 1 :])))
        attempts.append((leaves, size, root, (*proof[:at], proof[at][:31], *proof[at + 1 :])))
    for attempt in attempts:
        with pytest.raises(ProofError):
            verify_multi_proof(*attempt)


@settings(deadline=None)
@given(st.integers(1, 200), st.data())
def test_a_range_proof_shows_that_nothing_was_left_out(size: int, data: st.DataObject) -> None:
    naive, hashes = tree(size)
    start = data.draw(st.integers(0, size - 1))
    end = data.draw(st.integers(start + 1, size))
    root, proof = naive.root(0, size), range_proof(start, end, size, hashes)
    leaves = naive.leaves[start:end]
    assert len(proof) <= 2 * size.bit_length()
    verify_range_proof(leaves, start, end, size, root, proof)
    gone = data.draw(st.integers(0, len(leaves) - 1))
    for fewer in (leaves[:gone] + leaves[gone + 1 :], [*leaves[:gone], OTHER, *leaves[gone + 1 :]], [*leaves, OTHER]):
        with pytest.raises(ProofError):
            verify_range_proof(fewer, start, end, size, root, proof)
        if fewer:
            with pytest.raises(ProofError):
                verify_range_proof(fewer, start, start + len(fewer), size, root, proof)
    for elsewhere in (start - 1, start + 1):
        with pytest.raises(ProofError):
            verify_range_proof(leaves, elsewhere, elsewhere + len(leaves), size, root, proof)


def test_one_proof_for_many_leaves_is_shorter_than_many_proofs() -> None:
    naive, hashes = tree(200)
    neighbours = range(64, 96)
    proof = multi_proof(neighbours, 200, hashes)
    assert proof == range_proof(64, 96, 200, hashes)
    assert len(proof) == 3
    assert sum(len(inclusion_proof(index, 200, hashes)) for index in neighbours) == 32 * 8
    assert multi_proof(range(200), 200, hashes) == ()
    verify_range_proof(naive.leaves, 0, 200, 200, naive.root(0, 200), ())


def test_no_leaves_prove_nothing_and_need_nothing() -> None:
    _, hashes = tree(5)
    assert multi_proof((), 5, hashes) == range_proof(3, 3, 5, hashes) == multi_proof((), 0, hashes) == ()
    verify_multi_proof({}, 5, OTHER, ())
    verify_range_proof((), 0, 0, 0, EMPTY_ROOT, ())
    for size, proof in ((5, (OTHER,)), (0, ())):  # of no entries the root is known
        with pytest.raises(ProofError):
            verify_multi_proof({}, size, OTHER, proof)


def test_what_is_not_in_the_tree_has_no_proof() -> None:
    _, hashes = tree(5)
    for indexes in ({5}, {-1}, {0, 5}):
        with pytest.raises(ProofError):
            multi_proof(indexes, 5, hashes)
    with pytest.raises(NotFound):
        multi_proof({0}, 6, hashes)

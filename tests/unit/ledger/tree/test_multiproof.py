import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.errors import NotFound, ProofError
from ledger.tree.merkle import EMPTY_ROOT, inclusion_proof, leaf_hash
from ledger.tree.multiproof import multi_proof, range_proof, verify_multi_proof, verify_range_proof
from tests.unit.ledger.tree.naive_tree import NaiveHashes, NaiveTree

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
    with pytest.raises(ProofError):
        verify_multi_proof({}, 5, OTHER, (OTHER,))


def test_what_is_not_in_the_tree_has_no_proof() -> None:
    _, hashes = tree(5)
    for indexes in ({5}, {-1}, {0, 5}):
        with pytest.raises(ProofError):
            multi_proof(indexes, 5, hashes)
    with pytest.raises(NotFound):
        multi_proof({0}, 6, hashes)

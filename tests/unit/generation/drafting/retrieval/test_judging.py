"""What was retrieved is judged by what was emitted, verified or not, and drafted where it is likely enough to hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.generation.drafting.retrieval.judging import COUNTS, FAR, NEAR, OWN, Rates, Waiting
from services.generation.drafting.retrieval.trie import Trie, merge

DEPTH = 12
LENGTHS = (1, 2, 3, 5, 8)  # beyond, the last class
PRIORS = {
    OWN: (0.22, 0.36, 0.52, 0.68, 0.85, 0.93),
    NEAR: (0.15, 0.25, 0.35, 0.55, 0.75, 0.9),
    FAR: (0.15, 0.25, 0.32, 0.45, 0.72, 0.85),
}
Row = tuple[list[int], int, int]


def class_of(length: int) -> int:
    return next((i for i, most in enumerate(LENGTHS) if length <= most), len(LENGTHS))


class Plainly:
    """The same in Python, with a dictionary of rates."""

    def __init__(self) -> None:
        self.counts: dict[object, tuple[float, float]] = {}

    @staticmethod
    def kinds(trie: Trie) -> list[tuple[int, int, int]]:
        parents = trie.parents.tolist()
        return [
            (tier, length, min(parents[:node].count(parent), 2))
            for node, (tier, length, parent) in enumerate(
                zip(trie.tiers.tolist(), trie.lengths.tolist(), parents, strict=True)
            )
        ]

    def rate(self, kind: tuple[int, int, int], depth: int) -> float:
        tier, length, rank = kind
        rate = PRIORS[tier][class_of(length + depth - 1)] * (1.0, 0.35, 0.1)[rank]
        for whose, weight in (("shared", 8.0), ("own", 4.0)):
            accepted, tried = self.counts.get((whose, tier, class_of(length), rank, min(depth, 8)), (0.0, 0.0))
            rate = (accepted + weight * rate) / (tried + weight)
        return rate

    def chances(self, trie: Trie) -> list[float]:
        found: list[float] = []
        for node, kind in enumerate(self.kinds(trie)):
            above = found[trie.parents[node]] if trie.parents[node] >= 0 else 1.0
            found.append(above * self.rate(kind, int(trie.depths[node])))
        return found

    def record(self, kind: tuple[int, int, int], depth: int, held: bool) -> None:
        tier, length, rank = kind
        for whose, memory in (("shared", 0.998), ("own", 0.99)):
            name = whose, tier, class_of(length), rank, min(depth, 8)
            accepted, tried = self.counts.get(name, (0.0, 0.0))
            self.counts[name] = accepted * memory + held, tried * memory + 1.0

    def judge(self, trie: Trie, emitted: list[int]) -> None:
        at, kinds = -1, self.kinds(trie)
        for depth, token in enumerate(emitted, 1):
            below = [node for node in range(len(trie)) if trie.parents[node] == at]
            for node in below:
                self.record(kinds[node], depth, bool(trie.tokens[node] == token))
            held = [node for node in below if trie.tokens[node] == token]
            if not held:
                return
            (at,) = held


rows = st.lists(
    st.tuples(st.lists(st.integers(0, 2), max_size=DEPTH), st.integers(OWN, FAR), st.integers(1, 16)),
    min_size=1,
    max_size=8,
)


def trie_of(found: list[Row]) -> Trie:
    padded = np.array([(tokens + [-1] * DEPTH)[:DEPTH] for tokens, _, _ in found], np.int64)
    return merge(padded, np.array([tier for _, tier, _ in found]), np.array([length for *_, length in found]), 48)


@given(st.lists(st.tuples(rows, st.lists(st.integers(0, 2), max_size=DEPTH + 2)), min_size=1, max_size=4), st.data())
def test_rates_are_those_that_a_dictionary_would_hold(
    texts: list[tuple[list[Row], list[int]]], data: st.DataObject
) -> None:
    plainly, rates = Plainly(), Rates(np.zeros(COUNTS))
    for found, emitted in texts:
        trie = trie_of(found)
        chances = plainly.chances(trie)
        least = data.draw(st.sampled_from([*chances, 0.0, 1.0])) - 1e-12
        tree = rates.tree(7, trie, 64, 16, least)
        assert (tree.tokens[0], tree.parents[0]) == (7, -1)
        assert tree.tokens[1:] == tuple(t for t, c in zip(trie.tokens.tolist(), chances, strict=True) if c >= least)
        waiting, text = Waiting(trie, 2), [5, 5]
        for token in [*emitted, None]:  # as it comes, token by token
            if not rates.judge(waiting, np.array(text, np.int64)):
                break
            text += [] if token is None else [token]
        plainly.judge(trie, emitted)


def test_a_tree_keeps_within_its_budget_and_its_parents_in_it() -> None:
    trie = trie_of([([1, 2, 3, 4], OWN, 16), ([1, 2, 0], NEAR, 2), ([2, 2], FAR, 2)])
    rates = Rates(np.zeros(COUNTS))
    whole = rates.tree(9, trie, 64, 16, 0.0)
    assert len(whole) == 1 + len(trie)
    assert max(whole.depths()) == 4
    few = rates.tree(9, trie, 3, 16, 0.0)
    assert few.tokens == whole.tokens[:4]
    assert max(rates.tree(9, trie, 64, 2, 0.0).depths()) == 2
    assert len(rates.tree(9, trie, 0, 16, 0.0)) == 1
    for tree in (whole, few):
        assert all(parent < node for node, parent in enumerate(tree.parents))


@pytest.mark.parametrize(("emitted", "goes_on"), [([], True), ([1], True), ([1, 2], False), ([2], False), ([0], False)])
def test_judging_ends_where_nothing_is_left_to_compare(emitted: list[int], goes_on: bool) -> None:
    trie = trie_of([([1, 2], OWN, 3), ([2], FAR, 2)])
    assert Rates(np.zeros(COUNTS)).judge(Waiting(trie, 1), np.array([9, *emitted])) is goes_on


def test_sequences_share_counts_and_each_goes_by_its_own_first() -> None:
    shared = np.zeros(COUNTS)
    one, other, trie = Rates(shared), Rates(shared), trie_of([([1], OWN, 4)])
    before = other.first(4)
    for _ in range(20):
        one.judge(Waiting(trie, 0), np.array([1]))
    assert before < other.first(4) < one.first(4)

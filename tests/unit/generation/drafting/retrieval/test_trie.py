"""Tries of continuations against a count of every prefix."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.generation.drafting.retrieval.trie import Trie, merge

DEPTH = 4


@st.composite
def continuations(draw: st.DrawFn) -> list[tuple[list[int], int, int]]:
    """Rows of tokens with a tier and a match length each."""
    row = st.tuples(st.lists(st.integers(0, 2), max_size=DEPTH), st.integers(0, 2), st.integers(1, 16))
    return draw(st.lists(row, min_size=1, max_size=12))


def merged(rows: list[tuple[list[int], int, int]], most: int) -> Trie:
    padded = np.array([(tokens + [-1] * DEPTH)[:DEPTH] for tokens, _, _ in rows], np.int64)
    return merge(padded, np.array([tier for _, tier, _ in rows]), np.array([length for _, _, length in rows]), most)


def paths(trie: Trie) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for token, parent in zip(trie.tokens.tolist(), trie.parents.tolist(), strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


@given(continuations())
def test_every_prefix_is_a_node_with_its_count_and_its_nearest_tier(rows: list[tuple[list[int], int, int]]) -> None:
    trie = merged(rows, 1000)
    prefixes = [tuple(tokens[:i]) for tokens, _, _ in rows for i in range(1, len(tokens) + 1)]
    assert dict(zip(paths(trie), trie.counts.tolist(), strict=True)) == dict(Counter(prefixes))
    for path, depth, tier, length in zip(paths(trie), trie.depths, trie.tiers, trie.lengths, strict=True):
        below = [(t, n) for tokens, t, n in rows if tuple(tokens[: len(path)]) == path]
        assert (depth, tier, length) == (len(path), min(t for t, _ in below), max(n for _, n in below))


@given(continuations(), st.randoms(use_true_random=False), st.integers(1, 8))
def test_a_cut_keeps_the_best_in_any_order_of_the_rows(
    rows: list[tuple[list[int], int, int]], random: st.DataObject, most: int
) -> None:
    whole, cut = merged(rows, 1000), merged(rows, most)
    assert paths(cut) == paths(whole)[:most]
    random.shuffle(rows)  # type: ignore[attr-defined]
    assert paths(merged(rows, most)) == paths(cut)
    ranks = list(
        zip(whole.tiers.tolist(), (-whole.counts).tolist(), whole.depths.tolist(), whole.tokens.tolist(), strict=True)
    )
    assert ranks == sorted(ranks)

"""Copies of a sequence's own text: what followed the same words, with the chance that such copies have had."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.generation.drafting.eagle3 import copying
from services.generation.drafting.eagle3.copying import Copies


def copies(guesses: int = 8) -> Copies:
    return Copies(np.zeros(copying.COUNTS), guesses)


def paths(found: Copies) -> list[tuple[int, ...]]:
    """Of the nodes without children, root left out."""
    tokens, parents, _ = (column.tolist() for column in found.candidates)
    ways: list[tuple[int, ...]] = [()]
    for token, parent in zip(tokens[1:], parents[1:], strict=True):
        ways.append((*ways[parent], token))
    return [way for node, way in enumerate(ways) if node and node not in parents]


def test_what_followed_the_same_words_is_a_candidate_the_longest_match_first() -> None:
    found = copies()
    found.find([5, 6, 7, 8, 1, 7, 9, 2, 5, 6, 7], 3, 0.0, 0.5)
    assert paths(found) == [(8, 1, 7), (9, 2, 5)]
    _, _, chances = found.candidates
    assert chances[1] > chances[4]


def test_a_repetition_is_taken_to_go_on() -> None:
    found = copies()
    found.find([1, 2, 1, 2, 1, 2], 7, 0.0, 0.5)
    assert paths(found) == [(1, 2, 1, 2, 1, 2, 1)]


@pytest.mark.parametrize(("match", "length"), [(1, 3), (2, 16), (8, 16), (9, 31)])
def test_a_copy_runs_the_further_the_longer_its_match(match: int, length: int) -> None:
    text = [*range(50), *range(99, 99 - 10 + match, -1), *range(10 - match, 10)]
    found = copies()
    found.find(text, 64, 0.0, 0.5)
    assert paths(found) == [tuple(range(10, 10 + length))]
    found.judge([*text, *range(10, 50)])
    assert found._own[..., 1].sum() == pytest.approx(length, abs=3)  # each token of it was judged
    assert found._opened == 0


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=200), guesses=st.integers(1, 8), depth=st.integers(1, 40),
    least=st.sampled_from((0.0, 0.05, 0.4)),
)  # fmt: skip
def test_every_candidate_has_been_there_before(tokens: list[int], guesses: int, depth: int, least: float) -> None:
    found = copies(guesses)
    found.find(tokens, depth, least, 0.5)
    ways = paths(found)
    assert len(found) <= copying.MOST
    assert len({way[0] for way in ways}) == len(ways) <= guesses
    assert all(len(way) <= min(depth, 31) for way in ways)
    assert (found.candidates[2] >= least).all()
    for way in ways:
        text = [*tokens, *way]
        pairs = [set(pairwise(text[:end])) for end in range(len(tokens), len(text))]
        assert all((text[len(tokens) - 1 + i], way[i]) in pairs[i] for i in range(len(way)))


def test_chances_follow_what_held_in_this_text_and_then_in_others() -> None:
    shared, text = np.zeros(copying.COUNTS), [1, 2, 3, 4, 5, 1, 2, 3]
    first, fresh = Copies(shared, 4), Copies(np.zeros(copying.COUNTS), 4)
    for found in (first, fresh):
        found.find(text, 4, 0.0, 0.5)
    expected = fresh.candidates[2][1]
    first.judge([*text, 9])
    again, other = Copies(shared, 4), Copies(shared, 4)
    again.find(text, 4, 0.0, 0.5)
    assert again.candidates[2][1] < expected
    for found in (first, other):
        found.find([*text, 9, 1, 2, 3], 4, 0.0, 0.5)
    assert first.candidates[2][1] < other.candidates[2][1]


def test_a_copy_is_judged_as_far_as_the_text_tells_and_no_further_than_its_first_error() -> None:
    shared, text = np.zeros(copying.COUNTS), [1, 2, 3, 4, 5, 6, 1, 2]
    found = Copies(shared, 4)
    found.find(text, 16, 0.0, 0.5)
    found.judge([*text, 3, 4])
    assert shared[..., 1].sum() == 2.0
    found.judge([*text, 3, 4, 9, 9])
    assert shared[..., 1].sum() == pytest.approx(3.0, abs=0.01)
    assert shared[..., 0].sum() == pytest.approx(2.0, abs=0.01)
    found.judge([*text, 3, 4, 9, 9, 9])
    assert shared[..., 1].sum() == pytest.approx(3.0, abs=0.01)


def test_without_the_head_only_what_is_sure_enough_is_drafted() -> None:
    found = copies()
    found.find([5, 6, 7, 8, 1, 7, 9, 2, 5, 6, 7], 3, 0.0, 0.2)
    chances = found.candidates[2]
    tree = found.tree(float(chances[2]))
    assert tree.tokens == (7, 8, 1)
    assert tree.parents == (-1, 0, 1)
    assert found.expected == pytest.approx(max(way[way >= 0.2].sum() for way in (chances[1:4], chances[4:])))
    assert len(found.tree(0.99)) == 1
    assert found.tree(0.0, 2).tokens == (7, 8, 1)

"""Lookahead's parts: pool, window, and how it decides what is worth a row."""

from __future__ import annotations

import numpy as np
import pytest

from services.generation.drafting.lookahead import JacobiWindow, LookaheadDrafter, LookaheadShape, NgramPool
from services.generation.engine.cost import PassCost
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.tree import TokenTree
from tests.fakes.budgets import budget as budget_of

CHEAP, DEAR = PassCost.line(fixed=1.0, row=0.005), PassCost.line(fixed=1.0, row=10.0)


def test_the_pool_keeps_64_and_drops_the_least_recently_used() -> None:
    pool = NgramPool()
    for first in range(64):
        pool.add((first, 1, 2))
    pool.add((0, 1, 2))
    pool.add((99, 1, 2))
    assert len(pool) == 64
    assert pool.after(0) == [(1, 2)]
    assert pool.after(1) == []
    assert pool.after(99) == [(1, 2)]


def test_the_pool_tells_the_latest_guess_first() -> None:
    pool = NgramPool()
    for ngram in ((5, 1), (5, 2), (5, 1)):
        pool.add(ngram)
    assert pool.after(5) == [(1,), (2,)]


def test_a_window_of_two_columns_yields_trigrams_on_its_second_pass() -> None:
    window = JacobiWindow(2, 3, [8, 7])
    assert window.nodes(0, 1) == ([7, 8], [0, 1])
    assert window.advance([1, 2]) == []
    assert window.nodes(0, 1) == ([7, 8, 1, 2], [0, 1, 1, 2])
    assert window.advance([3, 4]) == [(7, 1, 3), (8, 2, 4)]
    assert window.nodes(0, 5) == ([1, 2, 3, 4], [0, 5, 5, 6])
    assert window.rows == 4


def test_the_shape_is_wide_where_rows_are_cheap() -> None:
    cheap, dear = LookaheadShape.for_device(CHEAP), LookaheadShape.for_device(DEAR)
    assert cheap.guesses == 15
    assert dear.guesses == 1
    assert (cheap.window, dear.window) == (15, 0)
    assert LookaheadShape.for_device(PassCost.line(fixed=1.0, row=0.02)).window == 0


def draft_for(prompt: list[int], cost: PassCost = CHEAP, **options: int):  # type: ignore[no-untyped-def]
    return LookaheadDrafter(cost).begin(
        EngineRequest("r", tuple(prompt), SamplingParams(), method="lookahead", parameters=options)
    )


def test_a_text_that_repeats_is_continued() -> None:
    prompt = [1, 2, 3, 4, 5, 6, 1, 2, 3]
    tree = draft_for(prompt, window=0).propose(prompt, budget_of(nodes=20, depth=4, breakeven=0.01))
    assert tree.tokens[:3] == (3, 4, 5)
    assert tree.parents[:3] == (-1, 0, 1)


def test_no_row_is_spent_that_does_not_pay() -> None:
    prompt = [1, 2, 3, 4, 5, 6, 1, 2, 3]
    tree = draft_for(prompt, window=0).propose(prompt, budget_of(nodes=20, depth=4, breakeven=0.99))
    assert tree == TokenTree.root(3)


def test_width_shrinks_to_zero_when_guesses_keep_failing_and_comes_back_when_they_hold() -> None:
    draft, budget = draft_for([1, 2], window=0), budget_of(nodes=20, depth=8, breakeven=0.3)
    logits = np.zeros((21, 300), np.float32)
    tokens = [1, 2]

    def step(token: int) -> int:
        tree = draft.propose(tokens, budget)
        tokens.append(token)
        draft.observe(tokens, tree, [0], logits[: len(tree)])
        return len(tree) - 1

    for number in range(120):
        step(1 if number % 2 == 0 else 100 + number)
    assert sum(step(1 if number % 2 == 0 else 250 - number) for number in range(20)) == 0
    assert sum(step((5, 6, 7)[number % 3]) for number in range(60)) > 20


def test_a_window_asked_for_runs_in_every_pass_and_fills_the_pool() -> None:
    draft, budget = draft_for([1, 2, 3], window=2, ngram=3, guesses=2), budget_of(nodes=30, depth=20, breakeven=0.01)
    tokens = [1, 2, 3]
    for number in range(6):
        tree = draft.propose(tokens, budget)
        logits = np.zeros((len(tree), 50), np.float32)
        logits[:, 40 + number % 3] = 1.0
        tokens.append(20 + number)
        draft.observe(tokens, tree, [0], logits)
        assert len(tree) > 2
    assert len(draft.pool) > 0


def test_no_guesses_at_all_can_be_asked_for() -> None:
    tree = draft_for([1, 2, 1, 2, 1], window=0, guesses=0).propose([1, 2, 1, 2, 1], budget_of(20, 8, 0.01))
    assert tree == TokenTree.root(1)


@pytest.mark.parametrize("proposed", [True, False], ids=["its tree found no room", "it was preempted"])
def test_a_window_outlives_a_pass_without_it(proposed: bool) -> None:
    draft, budget = draft_for([1, 2, 3], window=3, ngram=4, guesses=1), budget_of(nodes=30, depth=20, breakeven=0.01)
    tokens = [1, 2, 3]
    for number in range(8):
        tree = draft.propose(tokens, budget) if number != 4 or proposed else TokenTree.root(tokens[-1])
        ran = tree if number != 4 else TokenTree.root(tokens[-1])
        tokens.append(20 + number)
        draft.observe(tokens, ran, [0], np.zeros((len(ran), 50), np.float32))
    assert len(draft.propose(tokens, budget)) > 3 * 3


def test_what_the_window_saw_is_guessed_where_the_text_has_nothing() -> None:
    draft = draft_for([1, 2, 3], window=2, ngram=3)
    draft.pool.add((3, 40, 41))
    tree = draft.propose([1, 2, 3], budget_of(nodes=9, depth=2, breakeven=0.01))
    assert tree.tokens == (3, 40, 41)


def test_a_tree_is_cut_to_what_a_pass_can_take() -> None:
    tree = TokenTree((0, 1, 99, 3, 4, 5), (-1, 0, 1, 2, 1, 4))
    assert tree.cut(6, 9, 100) is tree
    assert tree.cut(6, 9, 50) == TokenTree((0, 1, 4, 5), (-1, 0, 1, 2))
    assert tree.cut(6, 2, 50) == TokenTree((0, 1, 4), (-1, 0, 1))
    assert tree.cut(2, 9, 100) == TokenTree((0, 1), (-1, 0))

"""The judge of drafts: seconds saved by passes, chains and levels, small enough to compute by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.generation.engine.cost import EXPLORE_EVERY, StepCost
from services.generation.engine.economics import (
    Costs,
    DraftCost,
    Pass,
    best_depth,
    best_pass,
    breakeven,
    next_row,
    nodes_to_expand,
)
from services.generation.engine.turns import EXPLORATION, TURN, Choice, choose

PLAIN = Pass(0, 1.0, 1.0)
"""A pass without drafts emits a token in a second."""


def costs(row: float, step: float = 0.0, step_row: float = 0.0, draft: float = 0.0) -> Costs:
    return Costs(1.0 + row * np.arange(9.0), step, step_row, draft)


chances = st.lists(st.floats(0.0, 1.0), max_size=8).map(lambda found: np.array(sorted(found, reverse=True)))
seconds = st.floats(0.0, 1.0)


@given(chances, seconds, seconds, seconds, st.integers(0, 3))
def test_no_number_of_draft_tokens_emits_more_a_second_than_the_best_pass(
    chances: np.ndarray, row: float, step: float, draft: float, steps: int
) -> None:
    found = best_pass(chances, steps, costs(row, step, draft=draft))
    drafting = steps * step + (draft if steps else 0.0)
    for drafted in range(len(chances) + 1):
        emitted, took = 1.0 + chances[:drafted].sum(), 1.0 + row * drafted + drafting
        assert emitted / took <= found.emitted / found.seconds + 1e-9
        assert drafted != found.drafted or (emitted, took) == pytest.approx((found.emitted, found.seconds))


@given(chances, seconds, seconds, seconds)
def test_no_chain_saves_more_than_the_best(rates: np.ndarray, row: float, step: float, draft: float) -> None:
    depth = best_depth(rates, 1.0, PLAIN, costs(row, step, draft=draft))
    saved = [np.cumprod(rates)[:n].sum() - n * (row + step) - (draft if n else 0.0) for n in range(len(rates) + 1)]
    assert saved[depth] == pytest.approx(max(saved), abs=1e-9)


def test_a_chain_that_the_pass_emits_already_saves_nothing() -> None:
    rates, cost = np.full(4, 0.9), costs(row=0.1, step=0.05)
    assert best_depth(rates, 1.0, PLAIN, cost) == 4
    assert best_depth(rates, 0.05, PLAIN, cost) == 0


def test_a_level_is_computed_if_its_nodes_pay_for_their_rows_and_together_for_the_step() -> None:
    likely = np.array([0.9, 0.5, 0.1])
    assert nodes_to_expand(likely, 0.8, PLAIN, costs(row=0.1, step_row=0.05)) == 2
    assert nodes_to_expand(likely, 0.8, PLAIN, costs(row=0.1, step_row=0.05, step=0.7)) == 2
    assert nodes_to_expand(likely, 0.8, PLAIN, costs(row=0.1, step_row=0.05, step=0.9)) == 0


def test_a_row_costs_the_least_average_among_any_number_of_further_ones() -> None:
    pass_cost = np.array([1.0, 1.9, 2.0, 2.1])
    assert next_row(pass_cost, 0) == pytest.approx(1.1 / 3)
    assert next_row(pass_cost, 1) == pytest.approx(0.1)
    assert breakeven(pass_cost) == pytest.approx(1.1 / 3)
    assert breakeven(pass_cost[:1]) == breakeven(np.array([1.0, 2.5])) == 1.0


def test_a_draft_costs_its_share_of_what_sequences_share_and_every_so_many_refused_ones_is_made() -> None:
    cost = DraftCost(StepCost(0.4, 0.01), StepCost(0.2, 0.02))
    assert cost.of(np.ones(2), 4)[1:] == pytest.approx((0.05, 0.02, 0.11))
    assert [cost.refused() for _ in range(2 * EXPLORE_EVERY)].count(True) == 2


def test_the_best_method_has_the_turn_and_the_preferred_one_among_equals() -> None:
    assert choose({"a": 0.1, "b": 0.3}, (), 0.0) == Choice("b")
    assert choose({"a": 0.2, "b": 0.2}, (), 0.0) == Choice("a")
    assert choose({"a": -2 * EXPLORATION, "b": -1.0}, (), 0.0) == Choice(None)
    assert choose({}, (), TURN) == Choice(None)


def test_a_trial_takes_its_price_from_what_was_earned_and_a_new_method_pays_none() -> None:
    gains = {"a": 0.5, "b": 0.25, "c": -9.0}
    assert choose(gains, (), TURN * 0.2) == Choice("a")
    assert choose(gains, (), TURN * 0.25) == Choice("b", price=TURN * 0.25)
    assert choose(gains, {"c"}, 0.0) == Choice("c")
    assert choose({"a": 0.5, "b": -9.0}, (), TURN) == Choice("b", price=TURN)

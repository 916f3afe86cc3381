"""What a step takes beyond its model is measured where nothing else happens in it."""

from __future__ import annotations

import pytest

from services.generation.drafting.auto.pace import Pace, Step
from services.generation.drafting.auto.price import Price


def measured(*passes: tuple[float, int, float], pace: Pace | None = None) -> float:
    """Of a turn: when each step began, how many sequences drafted in it, what this one's share was modelled to cost."""
    pace = pace or Pace()
    pace.saw([(Step(began, sequences), spent) for began, sequences, spent in passes])
    return pace.beyond


def test_each_sequence_of_a_step_has_its_share_of_what_it_took_beyond_the_model() -> None:
    assert measured((5.0, 2, 0.015), (5.04, 2, 9.9)) == pytest.approx(0.005)
    assert measured((5.0, 1, 0.010), (5.013, 1, 0.010), (5.024, 1, 9.9)) == pytest.approx(0.002)  # the mean of a turn
    pace = Pace()
    measured((5.0, 1, 0.010), (5.013, 1, 0.010), pace=pace)
    assert measured((9.0, 1, 0.010), (9.012, 1, 0.010), pace=pace) == pytest.approx(0.0025)  # and of turns, at first
    for _ in range(200):
        measured((5.0, 1, 0.010), (5.013, 1, 0.010), pace=pace)
    assert measured((5.0, 1, 0.010), (5.018, 1, 0.010), pace=pace) == pytest.approx(0.003 + 0.02 * 0.005, rel=0.01)


def test_those_that_cost_more_make_up_for_those_that_cost_less() -> None:
    pace = Pace()
    for began in range(0, 2000, 2):
        measured((began, 2, 0.016), (began + 0.05, 2, 0.016), pace=pace)
        measured((began, 2, 0.024), (began + 0.05, 2, 0.024), pace=pace)
    assert pace.beyond == pytest.approx(0.005, rel=0.05)


def test_steps_that_say_nothing_are_left_out() -> None:
    assert measured() == 0.0
    assert measured((5.0, 1, 0.010)) == 0.0  # nobody knows when it ended
    assert measured((5.0, 1, 0.010), (5.5, 2, 0.010)) == 0.0  # others came, whose prompts it may have read


def test_what_takes_very_long_had_other_reasons_and_nothing_is_below_the_model() -> None:
    assert measured((5.0, 1, 0.010), (14.0, 1, 0.010)) == pytest.approx(0.010)
    assert measured((5.0, 1, 0.010), (5.001, 1, 0.010)) == 0.0


def test_it_weighs_on_passes_with_drafts_and_on_those_without() -> None:
    price = Price(bare=0.010, row=0.001, beyond=0.005, drafting=0.002)
    assert price.modelled(3) == pytest.approx(0.010 + 0.002 + 0.002 + 0.0008)
    assert price.tally(0.0148, 2).cost == pytest.approx((0.0148 + 0.005) / 0.015)
    assert price.tally(0.0148, 2).milliseconds == pytest.approx(19.8)

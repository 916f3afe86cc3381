"""What a step takes beyond its model is measured where nothing else happens in it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from services.generation.drafting.auto.pace import Pace
from services.generation.drafting.auto.price import Price


@dataclass
class Sequence:
    spent: float | None


def steps(pace: Pace, took: float, before: list[Sequence], after: list[Sequence], *, shadowed: bool = False) -> float:
    """Two steps, the first of which is measured, and those that are not."""
    pace.step(5.0, before, shadowed=shadowed)
    pace.step(5.0 + took, after, shadowed=False)
    for now in range(6):
        pace.step(20.0 + now, before, shadowed=False)
    return pace.beyond


def test_each_sequence_of_a_step_has_its_share_of_what_it_took_beyond_the_model() -> None:
    one, other = Sequence(0.010), Sequence(0.020)
    assert steps(Pace(), 0.040, [one, other], [one, other]) == pytest.approx(0.005)
    pace = Pace()
    steps(pace, 0.013, [one], [one])
    assert steps(pace, 0.012, [one], [one]) == pytest.approx(0.0025)  # the mean at first


def test_steps_that_say_nothing_are_left_out() -> None:
    one, other, unknown = Sequence(0.01), Sequence(0.01), Sequence(None)
    for before, after in (([one], [other]), ([one], [one, other]), ([], []), ([one, unknown], [one, unknown])):
        assert steps(Pace(), 0.5, before, after) == 0.0
    assert steps(Pace(), 0.5, [one], [one], shadowed=True) == 0.0


def test_what_takes_very_long_had_other_reasons_and_nothing_is_below_the_model() -> None:
    one = Sequence(0.010)
    assert steps(Pace(), 9.0, [one], [one]) == pytest.approx(0.010)
    assert steps(Pace(), 0.001, [one], [one]) == 0.0


def test_it_weighs_on_passes_with_drafts_and_on_those_without() -> None:
    price = Price(bare=0.010, row=0.001, beyond=0.005, drafting=0.002)
    assert price.modelled(3) == pytest.approx(0.010 + 0.002 + 0.002 + 0.0008)
    assert price.tally(0.0148, 2).cost == pytest.approx((0.0148 + 0.005) / 0.015)
    assert price.tally(0.0148, 2).milliseconds == pytest.approx(19.8)

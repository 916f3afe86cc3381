"""How long passes really take is measured where nothing else happens between them, by kind of request and drafter."""

from __future__ import annotations

import pytest

from services.generation.drafting.auto.arm import OFF
from services.generation.drafting.auto.pace import Pace, Step, Timed
from services.generation.drafting.auto.price import Price
from services.generation.drafting.auto.tally import Kind

KIND, OTHER = Kind(None, False, "code"), Kind(None, True, "code")


def measured(
    *passes: tuple[float, int, float],
    drafter: str = "rest",
    drafters: int = 1,
    drafting: float = 0.0,
    pace: Pace | None = None,
) -> float:
    """Of a turn: when each step began, how many sequences it has, what this one's share was modelled to take."""
    pace = pace or Pace()
    turn = [Timed(Step(began, sequences, drafters), modelled, drafting) for began, sequences, modelled in passes]
    pace.saw(KIND, drafter, turn)
    return pace.of(KIND, drafter)


def test_each_sequence_of_a_step_has_its_share_of_what_it_took() -> None:
    assert measured((5.0, 2, 0.016), (5.04, 2, 9.9)) == pytest.approx(0.020 / 0.016)
    assert measured((5.0, 1, 0.010), (5.013, 1, 0.020), (5.036, 1, 9.9)) == pytest.approx(0.036 / 0.030)  # of a turn
    assert measured((5.0, 1, 0.010), (5.008, 1, 9.9)) == pytest.approx(0.8)  # the model was too slow


def test_what_drafting_took_is_known_and_left_out() -> None:
    assert measured((5.0, 2, 0.016), (5.05, 2, 9.9), drafting=0.005) == pytest.approx(0.020 / 0.016)


def test_a_drafter_s_passes_are_told_apart_and_what_all_have_in_common_follows_the_machine() -> None:
    pace = Pace()

    def turns(count: int, **times: float) -> None:
        for _ in range(count):
            for drafter, taken in times.items():
                measured((0.0, 1, 0.010), (taken * 0.010, 1, 9.9), drafter=drafter, pace=pace)

    turns(300, rest=1.2, eagle3=1.5)
    assert (pace.of(KIND, "rest"), pace.of(KIND, "eagle3")) == pytest.approx((1.2, 1.5), rel=0.02)
    assert 1.2 < pace.of(KIND, OFF.drafter) < 1.5  # nothing is known of it but the machine
    assert pace.of(OTHER, "rest") == pace.of(KIND, OFF.drafter)  # nor of other kinds
    turns(300, rest=2.4)
    assert pace.of(KIND, "rest") == pytest.approx(2.4, rel=0.01)
    assert 2.8 < pace.of(KIND, "eagle3") < 3.1  # others are on the same machine


def test_one_turn_of_many_says_little_of_a_drafter_and_the_first_ones_much() -> None:
    pace = Pace()
    for _ in range(300):
        measured((5.0, 1, 0.010), (5.013, 1, 9.9), pace=pace)
    assert 1.3 < measured((5.0, 1, 0.010), (5.018, 1, 9.9), pace=pace) < 1.3 * (1.8 / 1.3) ** 0.12
    first = measured((5.0, 1, 0.010), (5.018, 1, 9.9), drafter="eagle3", pace=pace)
    assert 1.3 * (1.8 / 1.3) ** 0.4 < first < 1.3 * (1.8 / 1.3) ** 0.7


def test_those_that_cost_more_make_up_for_those_that_cost_less() -> None:
    pace = Pace()
    for began in range(0, 2000, 2):
        measured((began, 2, 0.016), (began + 0.05, 2, 0.016), pace=pace)
        measured((began, 2, 0.024), (began + 0.05, 2, 0.024), pace=pace)
    assert pace.of(KIND, "rest") == pytest.approx(0.025 / 0.020, rel=0.05)


def test_steps_that_several_drafters_share_say_nothing_of_any_of_them_and_still_how_fast_the_machine_is() -> None:
    pace = Pace()
    for _ in range(300):
        measured((0.0, 2, 0.008), (0.03, 2, 9.9), drafter="rest", drafters=2, pace=pace)
        measured((0.0, 2, 0.012), (0.03, 2, 9.9), drafter="eagle3", drafters=2, pace=pace)
    assert pace.of(KIND, "rest") == pace.of(KIND, "eagle3") == pytest.approx(0.015 / 0.010, rel=0.05)


def test_steps_that_say_nothing_are_left_out() -> None:
    assert measured() == 1.0
    assert measured((5.0, 1, 0.010)) == 1.0  # nobody knows when it ended
    assert measured((5.0, 1, 0.010), (5.5, 2, 0.010)) == 1.0  # others came, whose prompts it may have read
    assert measured((5.0, 1, 0.010), (5.0, 1, 0.010)) == 1.0  # a clock too coarse


def test_what_takes_very_long_had_other_reasons() -> None:
    assert measured((5.0, 1, 0.010), (14.0, 1, 0.010)) == pytest.approx(3.0)


def test_passes_with_drafts_and_passes_without_have_each_their_own() -> None:
    price = Price(bare=0.010, row=0.001, drafting=0.002, pace=1.5, pace_off=1.2)
    assert price.modelled(3) == pytest.approx(0.012)
    assert price.tally(0.012, 2).cost == pytest.approx((0.012 * 1.5 + 0.002) / (0.010 * 1.2))
    assert price.tally(0.012, 2).milliseconds == pytest.approx(20.0)
    assert price.tally(0.012, 2).tokens == 2.0

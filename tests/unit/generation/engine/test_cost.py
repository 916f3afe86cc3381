"""The cost model of a pass."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeVar

import numpy as np
import pytest

from services.generation.engine.cost import MARGIN, DraftPace, Pace, PassCost
from services.generation.target.cpu import CpuTarget
from services.generation.target.rows import Rows
from services.generation.target.target import PassOutput
from services.generation.target.timing import PassTimes, time_passes, time_seen

T = TypeVar("T")


def test_a_pass_costs_what_was_measured_and_lines_between() -> None:
    cost = PassCost.measured([(1, 7.0), (2, 12.0), (4, 14.0), (8, 22.0)])
    assert [cost.of(rows) for rows in (1, 2, 3, 4, 6)] == pytest.approx([7.0, 12.0, 13.0, 14.0, 18.0], rel=0.01)
    assert cost.of(16) == pytest.approx(38.0, rel=0.01)  # on as from 4 to 8


def test_one_number_of_rows_costs_what_it_does_among_many() -> None:
    cost = PassCost.measured([(2, 7.0), (3, 12.0), (6, 14.0), (8, 22.0)], key=0.01, seen=0.002)
    alone = [cost.of(rows) for rows in range(1, 40)]
    assert alone == pytest.approx(cost.of_each(np.arange(1, 40)).tolist())


class Clock:
    """Time that passes only while a target computes: `seconds(rows)` of each pass."""

    def __init__(self, seconds: Callable[[Rows], float]) -> None:
        self.now, self._seconds = 0.0, seconds

    def __call__(self) -> float:
        return self.now

    def measure(self, target: CpuTarget, measure: Callable[[CpuTarget, Callable[[], float]], T]) -> T:
        forward = target.forward

        def timed(rows: Rows, layers: Sequence[int] = ()) -> PassOutput:
            self.now += self._seconds(rows)
            return forward(rows, layers)

        target.forward = timed  # type: ignore[method-assign]
        try:
            return measure(target, self)
        finally:
            target.forward = forward  # type: ignore[method-assign]
            assert target.blocks.used == 0


def test_what_seeing_a_token_costs_is_the_slope_of_rows_beyond_the_first(target: CpuTarget) -> None:
    clock = Clock(lambda rows: 5 + len(rows) * int(rows.positions[0]) / 1000)
    assert clock.measure(target, time_seen) == pytest.approx(0.001)


def _passes(seconds: Callable[[int, int], float], target: CpuTarget) -> PassTimes:
    """Measured times, if the i-th pass takes `seconds(i, rows)`."""
    number = count()
    return Clock(lambda rows: seconds(next(number), len(rows))).measure(target, time_passes)


def test_passes_are_timed_once_they_take_no_longer(target: CpuTarget) -> None:
    times = _passes(lambda number, rows: (0.02 + 0.01 * min(number / 60, 1)) * (1 + rows / 10) / 1.1, target)
    assert times.samples[0] == (1, pytest.approx(0.03, rel=0.05))
    assert dict(times.samples)[8] == pytest.approx(0.03 * 1.8 / 1.1, rel=0.05)
    assert not times.changed


def test_a_memory_whose_speed_changes_is_told(target: CpuTarget) -> None:
    assert _passes(lambda number, rows: 0.02 if number < 60 else 0.026, target).changed


@pytest.mark.parametrize(("usual", "onset", "growth"), [(1.0, 0.0, 1.0), (2.0, 0.3, 0.5), (0.4, 0.1, 3.0)])
def test_passes_teach_what_they_cost_without_drafts_and_with_them(usual: float, onset: float, growth: float) -> None:
    pace, rng = Pace(), np.random.default_rng(1)
    for rows in rng.integers(0, 6, 400):
        more = 0.15 * rows
        pace.took(usual * (1.0 + (more > 0) * onset + growth * more) * rng.uniform(0.9, 1.1), 1.0, more)
    assert pace.usual == pytest.approx(usual, rel=0.05)
    expected = usual * np.array([1.0, 1.0 + MARGIN * onset + 0.3 * growth])
    np.testing.assert_allclose(pace.of(np.array([1.0, 1.3])), expected, rtol=0.15)


def test_a_pass_that_was_held_up_teaches_little() -> None:
    pace = Pace()
    for rows in (0, 3) * 100:
        pace.took(1.0 + 0.2 * rows, 1.0, 0.2 * rows)
    pace.took(1000.0, 1.0, 0.0)
    assert pace.usual <= 1.3
    pace.skipped()
    assert pace.last == 1.0


def test_drafts_in_every_pass_do_not_pass_for_what_a_token_costs_without_them() -> None:
    """Drafts take 0.5 whatever the cost model's estimate, and the machine takes 2 and then 3 times what it did."""
    pace = Pace()
    plain = []
    for number in range(2000):
        slow = 2.0 if number < 1000 else 3.0
        due = pace.due
        pace.took(slow if due else 1.5 * slow, 1.0, 0.0 if due else 0.1)
        plain.append(due)
        if number in {999, 1999}:
            assert pace.usual == pytest.approx(slow, rel=0.05)
            assert pace.of(np.array([1.0, 1.1]))[1] == pytest.approx(slow * 1.6, rel=0.1)  # 0.5 counts MARGIN times
    assert plain.index(True) == 4
    assert sum(plain) < 2000 / 30


def test_drafts_that_looked_too_dear_for_a_while_are_tried_again() -> None:
    """Something else had the machine while drafts were verified, so that later passes have none."""
    pace = Pace()
    for seconds, more in [(1.0, 0.0)] * 4 + [(3.0, 0.2)] * 16:
        pace.took(seconds, 1.0, more)
    assert pace.of(np.array([1.0, 1.2]))[1] > 2.0
    for _ in range(500):
        pace.took(1.0, 1.0, 0.0)
    assert pace.of(np.array([1.0, 1.2]))[1] < 1.3


@pytest.mark.parametrize(("once", "step"), [(1.0, 1.0), (0.2, 0.4), (3.0, 1.5)])
def test_drafts_teach_what_they_take(once: float, step: float) -> None:
    pace, rng = DraftPace(), np.random.default_rng(1)
    for steps in rng.integers(1, 6, 400):
        pace.took((0.3 * once + 0.1 * steps * step) * rng.uniform(0.9, 1.1), 0.3, 0.1 * steps)
    for steps in (1, 5):
        found, expected = 0.3 * pace.once + 0.1 * steps * pace.step, 0.3 * once + 0.1 * steps * step
        assert found == pytest.approx(expected, rel=0.2)

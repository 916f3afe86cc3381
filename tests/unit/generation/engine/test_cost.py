"""What a pass costs: rows over long histories take more, so that fewer draft tokens are worth theirs."""

from __future__ import annotations

import pytest

from services.generation.engine.cost import PassCost
from services.generation.target.cpu import CpuTarget
from services.generation.target.probing.calibration import time_seen

COST = PassCost(fixed=1.0, row=0.1, key=0.001, seen=0.0005)


def test_a_row_costs_what_it_sees_of_its_own_sequence() -> None:
    assert COST.of_row() == pytest.approx(0.1)
    assert COST.of_row(keys=1000, sequences=1) == pytest.approx(0.6)
    assert COST.of_row(keys=4000, sequences=4) == pytest.approx(0.6)
    assert COST.of(2, keys=1000) == pytest.approx(1.0 + 2 * 0.6 + 1.0)


def test_a_draft_token_pays_less_in_a_long_context() -> None:
    assert COST.breakeven(1, 1, keys=4000) > 2 * COST.breakeven(1, 1)
    blind = PassCost(COST.fixed, COST.row, COST.key)
    assert blind.breakeven(1, 1, keys=4000) < blind.breakeven(1, 1)


def test_what_seeing_a_token_costs_is_the_slope_of_rows_beyond_the_first(target: CpuTarget) -> None:
    class Clock:
        """A pass of r rows over a history of n tokens takes 5 + r * n / 1000 seconds."""

        now = 0.0

        def __call__(self) -> float:
            return self.now

    clock, forward = Clock(), target.forward

    def timed(rows, layers=()):  # type: ignore[no-untyped-def]
        clock.now += 5 + len(rows) * int(rows.positions[0]) / 1000
        return forward(rows, layers)

    target.forward = timed  # type: ignore[method-assign]
    try:
        assert time_seen(target, clock) == pytest.approx(0.001)
    finally:
        target.forward = forward  # type: ignore[method-assign]
    assert target.blocks.used == 0

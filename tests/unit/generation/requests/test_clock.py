"""A server whose clock is not the ledger's serves nothing, in either direction, and logs it once."""

import logging
from datetime import UTC, datetime, timedelta

import pytest

from services.generation.requests.halts import LedgerClock

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


def compared(clock: LedgerClock, ahead: float, took: float = 0.0) -> LedgerClock:
    """The ledger answers in the middle of a call that took so long, by a clock that this one is so far ahead of."""
    half = timedelta(seconds=took / 2)
    clock.compare(NOW - half, NOW - timedelta(seconds=ahead), NOW + half)
    return clock


@pytest.mark.parametrize("ahead", [301, 86_400, -301, -86_400])
def test_beyond_the_bound_there_is_a_problem_in_either_direction(ahead: float) -> None:
    clock = compared(LedgerClock(), ahead)
    assert clock.problem is not None
    assert clock.skew == timedelta(seconds=ahead)


@pytest.mark.parametrize("ahead", [0, 300, -300, 4])
def test_within_it_there_is_none(ahead: float) -> None:
    assert LedgerClock().problem is compared(LedgerClock(), ahead).problem is None


def test_a_slow_answer_is_held_against_no_clock() -> None:
    assert compared(LedgerClock(), 40, took=100).skew == timedelta()
    assert compared(LedgerClock(), 60, took=100).skew == timedelta(seconds=10)
    assert compared(LedgerClock(), -60, took=100).skew == timedelta(seconds=-10)


def test_each_change_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = LedgerClock()
    for ahead in (0, 6, 7, 400, 500, 7, 0, 0, -6):
        compared(clock, ahead)
    assert [line.levelname for line in caplog.records] == ["WARNING", "ERROR", "INFO", "WARNING"]

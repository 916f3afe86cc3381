"""Speedups that are stated, and those that are not."""

from __future__ import annotations

from services.generation.receipts.speedup import Speedup, calibrated, replayed


def test_a_replay_gives_the_ratio_of_the_two_times() -> None:
    assert replayed(3.0, 1.5) == Speedup(2.0, "replayed")


def test_calibration_counts_the_steps_after_the_first_token() -> None:
    assert calibrated(0.5, 5, 1.0) == Speedup(2.0, "calibrated")


def test_nothing_is_stated_where_nothing_was_measured() -> None:
    assert replayed(1.0, 0.0) is None
    assert replayed(0.0, 1.0) is None
    assert calibrated(0.5, 1, 1.0) is None
    assert calibrated(0.5, 0, 0.0) is None

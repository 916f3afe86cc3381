"""Lines about long steps of a start."""

import logging
from collections.abc import Sequence

import pytest

from services.generation.target.progress import Progress


def lines(caplog: pytest.LogCaptureFixture, times: Sequence[float], unit: str = "GB") -> list[str]:
    """What is logged if a tenth of 4e9 is done at each time after the first."""
    caplog.clear()
    clock = iter(times)
    with caplog.at_level(logging.INFO):
        progress = Progress("packing", 4_000_000_000, unit, lambda: next(clock))
        for _ in times[1:]:
            progress.add(400_000_000)
    return caplog.messages


def test_a_long_step_says_how_much_is_done_and_what_is_left(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, [0.0, 1.0, 2.5, 3.0, 6.0]) == [
        "packing: 0.8 of 4.0 GB, 10 s left",
        "packing: 1.6 of 4.0 GB, 9 s left",
    ]
    assert lines(caplog, [0.0, 3.0], "rows") == ["packing: 400000000 of 4000000000 rows, 27 s left"]


def test_a_short_step_and_the_end_of_one_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, [0.1 * each for each in range(11)]) == []
    assert lines(caplog, [0.0] * 10 + [5.0]) == []

"""The curve of a run goes on where it was, is drawn, and says when more lessons bring nothing."""

from pathlib import Path

import pytest

from services.training.curve import Curve, Point


def point(steps: int, length: float) -> Point:
    return Point(100 * steps, steps, length, (0.5, 0.25))


def curve_of(folder: Path, lengths: list[float]) -> Curve:
    curve = Curve(folder)
    for steps, length in enumerate(lengths, 1):
        curve.add(point(steps, length))
    return curve


def test_a_curve_goes_on_from_its_file_and_forgets_what_a_crash_undid(tmp_path: Path) -> None:
    curve_of(tmp_path, [1.1, 1.2, 1.3])
    again = Curve(tmp_path)
    assert again.points == [point(1, 1.1), point(2, 1.2), point(3, 1.3)]
    again.add(point(2, 1.25))
    assert Curve(tmp_path).points == [point(1, 1.1), point(2, 1.25)]


@pytest.mark.parametrize(
    ("lengths", "over"),
    [
        ([], False),
        ([1.0] * 6, False),  # too few to judge
        ([1.0] * 7, True),
        ([1.0 + 0.01 * n for n in range(20)], False),
        ([1.5, 1.4, 1.4, 1.4, 1.4, 1.4, 1.502], True),
        ([1.5, 1.4, 1.4, 1.4, 1.4, 1.4, 1.52], False),
    ],
)
def test_a_run_ends_once_the_last_checkpoints_bring_nothing(lengths: list[float], over: bool, tmp_path: Path) -> None:
    assert curve_of(tmp_path, lengths).is_over(0.4) is over
    assert not curve_of(tmp_path, lengths).is_over(0.6)

"""Drafts that are right as often as stated."""

from argparse import ArgumentTypeError

import pytest

from benchmarks.accepted import RatedDrafter, parse_shares

SHARES = (0.87, 0.69, 0.53)


class NoHead:
    feature_layers = (1,)


def test_drafts_are_right_as_often_as_stated_at_each_depth() -> None:
    rated = RatedDrafter(NoHead(), SHARES)  # type: ignore[arg-type]
    counts = [rated.right_tokens() for _ in range(20_000)]
    for depth, share in enumerate(SHARES, 1):
        assert sum(count >= depth for count in counts) / len(counts) == pytest.approx(share, abs=0.02)
    deeper = sum(count >= 4 for count in counts) / sum(count >= 3 for count in counts)
    assert deeper == pytest.approx(0.53 / 0.69, abs=0.03)


@pytest.mark.parametrize("text", ["", "0.5,0.6", "1.1", "0.5,0", "a", "-0.1", "4@2", "1@2", "2@0", "2@x"])
def test_shares_that_no_drafts_have_are_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        parse_shares(text)
    assert parse_shares("0.87,0.69,0.53") == SHARES


def test_an_acceptance_length_becomes_shares_that_fall_by_one_rate() -> None:
    first, second = parse_shares("2.08@2")
    assert (1.0 + first + second, second / first) == pytest.approx((2.08, first))

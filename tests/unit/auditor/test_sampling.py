"""The sampling rule: recomputable by everybody, independent of who asks, true to its rate."""

from __future__ import annotations

import hashlib

import pytest

from services.auditor.sampling import deciding_tree_size, is_sampled, needs_draw


def root(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


def test_an_entry_is_decided_by_the_first_tree_that_holds_a_later_one() -> None:
    assert [deciding_tree_size(index) for index in (0, 1, 41)] == [2, 3, 43]


def test_the_draw_is_the_hash_of_root_and_index_against_the_rate() -> None:
    draw = int.from_bytes(hashlib.sha256(root(1) + (7).to_bytes(8, "big")).digest(), "big") / 2**256
    assert is_sampled(root(1), 7, draw + 1e-9)
    assert not is_sampled(root(1), 7, draw - 1e-9)


def test_every_entry_is_sampled_at_rate_one_and_none_at_zero() -> None:
    assert all(is_sampled(root(number), number, 1.0) for number in range(100))
    assert not any(is_sampled(root(number), number, 0.0) for number in range(100))


def test_the_share_of_sampled_entries_is_the_rate() -> None:
    share = sum(is_sampled(root(number), number, 0.25) for number in range(20_000)) / 20_000
    assert abs(share - 0.25) < 0.015  # five standard deviations


def test_a_higher_rate_samples_everything_that_a_lower_one_does() -> None:
    few = {number for number in range(500) if is_sampled(root(number), number, 0.1)}
    many = {number for number in range(500) if is_sampled(root(number), number, 0.3)}
    assert few < many


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_what_is_no_probability_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="rate from 0 to 1"):
        needs_draw(rate)

"""Near passages are searched as by somebody who reads all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.generation.drafting.retrieval.nearby import Nearby

TOKENS = st.integers(0, 2)


def common_end(one: list[int], other: list[int]) -> int:
    length = 0
    while length < min(len(one), len(other), 16) and one[-1 - length] == other[-1 - length]:
        length += 1
    return length


@given(
    st.lists(st.lists(TOKENS, max_size=12), max_size=4),
    st.lists(TOKENS, max_size=20),
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(1, 5),
)
def test_longest_ends_come_first_then_nearer_passages(
    passages: list[list[int]], context: list[int], shortest: int, most: int, depth: int
) -> None:
    found, lengths = Nearby([np.array(p, np.int64) for p in passages]).continuations(
        np.array(context, np.int64), shortest, most, depth
    )
    expected = [
        (common_end(passage[:at], context), (passage[at : at + depth] + [-1] * depth)[:depth])
        for passage in passages
        for at in range(1, len(passage))
        if common_end(passage[:at], context) >= shortest
    ]
    expected.sort(key=lambda match: -match[0])  # stable: nearer passages, and earlier places in one, stay in front
    assert list(zip(lengths.tolist(), found.tolist(), strict=True)) == expected[:most]


@pytest.mark.parametrize("context", [[], [1], [1, 2]])
def test_nothing_is_near(context: list[int]) -> None:
    found, lengths = Nearby([]).continuations(np.array(context, np.int64), 2, 8, 16)
    assert found.shape == (0, 16)
    assert len(lengths) == 0


def test_who_asks_for_nothing_gets_nothing() -> None:
    found, lengths = Nearby([np.array([1, 2, 3])]).continuations(np.array([1, 2]), 0, 0, 4)
    assert (found.shape, len(lengths)) == ((0, 4), 0)


def test_what_is_read_for_every_pass_is_bounded() -> None:
    nearest, farther = np.arange(16_000), np.arange(20_000, 21_000)
    nearby = Nearby([nearest, farther])
    for context, first in ((nearest[100:102], 102), (farther[100:102], 20_102), (farther[600:602], None)):
        found, _ = nearby.continuations(context, 2, 8, 4)
        assert found[:, 0].tolist() == ([] if first is None else [first])
    cut, _ = nearby.continuations(farther[380:382], 2, 8, 4)
    assert cut.tolist() == [[20_382, -1, -1, -1]]

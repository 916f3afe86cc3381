"""A search in a row of logits finds what a plain comparison finds, at any length and place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from services.generation.drafting.draft_tree.candidates import above, largest

ROWS = arrays(np.float32, st.integers(0, 300), elements=st.floats(-4.0, 4.0, width=32))


@given(ROWS, st.floats(-5.0, 5.0, width=32))
def test_above_is_every_place_above_and_no_other(row: np.ndarray, limit: float) -> None:
    places = np.full(len(row), -1, np.int64)
    count = above(row, np.float32(limit), places)
    assert places[:count].tolist() == np.flatnonzero(row > np.float32(limit)).tolist()


@given(ROWS)
def test_largest_is_the_maximum(row: np.ndarray) -> None:
    assert largest(row) == (row.max() if len(row) else -np.inf)


@pytest.mark.parametrize("at", range(0, 300, 7))
def test_one_value_is_found_wherever_it_stands(at: int) -> None:
    row, places = np.full(300, -np.inf, np.float32), np.empty(300, np.int64)
    assert (largest(row), above(row, np.float32(0.0), places)) == (-np.inf, 0)
    row[at] = 1.0
    assert (largest(row), above(row, np.float32(0.0), places), places[0]) == (1.0, 1, at)

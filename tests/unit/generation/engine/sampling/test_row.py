"""The findings of one look at a row."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from services.generation.engine.engine_error import UnusableLogits
from services.generation.engine.sampling.race import GROUP, Row, key_of, value_of
from tests.examples import examples
from tests.fakes.logits import rows


def row(*values: float) -> Row:
    return Row.of(np.array(values, np.float32))


@given(rows())
@settings(deadline=None, max_examples=examples(300))
def test_the_two_best_are_those_of_a_sort(logits: NDArray[np.float32]) -> None:
    found, order = Row.of(logits), np.argsort(-logits, kind="stable")
    assert found.token == order[0]
    assert found.best == logits[order[0]]
    assert found.second == (logits[order[1]] if len(logits) > 1 else -math.inf)
    assert [value_of(peak) for peak in found.peaks] == [
        logits[start : start + GROUP].max() for start in range(0, len(logits), GROUP)
    ]


def test_the_lowest_id_among_equals() -> None:
    assert (row(1, 3, 2, 3).token, row(1, 3, 2, 3).second) == (1, 3.0)
    assert row(-np.inf, -5).token == 1
    assert row(-0.0, 0.0, -1).token == 0


def test_zeros_have_one_sign() -> None:
    found = row(-0.0, -0.0)
    assert (math.copysign(1.0, found.best), math.copysign(1.0, found.second)) == (1.0, 1.0)


@given(rows())
@settings(deadline=None)
def test_keys_are_in_the_order_of_the_values(logits: NDArray[np.float32]) -> None:
    keys = np.array([key_of(bits) for bits in logits.view(np.int32)])
    assert (np.sign(keys[:, None] - keys[None]) == np.sign(_differences(logits))).all()
    assert (np.array([value_of(key) for key in keys], np.float32) == logits).all()


def _differences(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = np.maximum(logits.astype(np.float64), -1e300)
    return wide[:, None] - wide[None]


@pytest.mark.parametrize("place", [0, 130, 299])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf])
def test_a_row_with_a_nan_or_an_infinity_is_refused(place: int, value: float) -> None:
    logits = np.zeros(300, np.float32)
    logits[place] = value
    with pytest.raises(UnusableLogits, match="the row hold"):
        Row.of(logits, "the row")


def test_a_row_of_minus_infinities_is_refused() -> None:
    with pytest.raises(UnusableLogits, match="leave no token"):
        row(*[-np.inf] * 300)

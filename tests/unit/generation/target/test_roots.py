"""Roots are the nearest numbers, by integers alone: whatever C's library does, models of all sizes read the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from services.generation.target.config.rope import inverse_root

SIZES = range(1, 40_000)


def between(value: np.floating, towards: float) -> Fraction:
    """The number half way from a float to its neighbour."""
    return (Fraction(float(value)) + Fraction(float(np.nextafter(value, type(value)(towards))))) / 2


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize(("of", "power"), [(math.sqrt, 1), (inverse_root, -1)])
def test_roots_of_all_sizes_are_the_nearest(of: Callable[[float], float], power: int, kind: type) -> None:
    for size in SIZES if kind is np.float32 else range(1, 4_000):
        found, exact = kind(of(size)), Fraction(size) ** power
        assert between(found, 0.0) ** 2 < exact < between(found, np.inf) ** 2, size


def test_sizes_need_not_be_whole() -> None:
    assert np.float32(math.sqrt(0.5)) == np.float32(float.fromhex("0x1.6a09e6p-1"))
    assert inverse_root(0.25) == 2.0
    assert inverse_root(144.0) == 1 / 12

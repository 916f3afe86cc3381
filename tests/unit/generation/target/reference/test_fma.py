"""The reference's fused multiply-add against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.generation.target.reference.operations import fma
from tests.examples import examples

pytestmark = pytest.mark.slow  # plain Python and numpy, number by number

LARGEST = Fraction(2**24 - 1) * 2**104


def nearest_float32(x: Fraction) -> float:
    """IEEE 754's rounding to nearest, ties to even, of a number that is not 0; the infinities beyond the range."""
    exponent = max(math.frexp(float(abs(x)))[1] - 25, -149)
    while True:  # frexp of a rounded value can be one off
        unit = Fraction(2) ** exponent
        if abs(x) < 2**24 * unit:
            break
        exponent += 1
    while exponent > -149 and abs(x) < 2**23 * unit:
        exponent -= 1
        unit /= 2
    rounded = round(abs(x) / unit) * unit  # Python rounds halves to even
    magnitude = math.inf if rounded > LARGEST else float(rounded)
    return math.copysign(magnitude, x)


def exact(a: float, b: float, c: float) -> float:
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total:
        return nearest_float32(total)
    return a * b + c  # 0 or its negative, by IEEE 754's rules of signs


def check(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    found = fma(a, b, c)
    expected = [exact(*map(float, each)) for each in zip(a, b, c, strict=True)]
    assert found.dtype == np.float32
    wrong = np.flatnonzero(found.view(np.uint32) != np.array(expected, np.float32).view(np.uint32))
    assert not len(wrong), [(a[i].hex(), b[i].hex(), c[i].hex(), found[i], expected[i]) for i in wrong[:3]]


def finite(bits: np.ndarray) -> np.ndarray:
    """Any bits as float32; infinities and NaN lose a bit of their exponent."""
    bits = bits.astype(np.uint32)
    return np.where(bits & 0x7F800000 == 0x7F800000, bits & ~np.uint32(0x40000000), bits).view(np.float32)


def test_any_numbers() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, (3, 20_000))
    check(*finite(bits))


def test_sums_whose_terms_are_near_each_other() -> None:
    """Cancellation, and sums in which one term decides how the other rounds."""
    random = np.random.default_rng(1)
    a, b = finite(random.integers(0x3F000000, 0x40800000, (2, 40_000)))
    product = a.astype(np.float64) * b
    scale = np.exp2(random.integers(-60, 60, len(a)))
    check(a, b, (product * -scale).astype(np.float32))
    near = (-product).astype(np.float32)
    check(a, b, np.nextafter(near, random.choice([-8, 8], len(a)).astype(np.float32)).astype(np.float32))


def test_sums_half_way_between_two_numbers() -> None:
    """c is far above a * b, which is half a unit of c, or less by down to 2^-46 of it, which float64 does not see."""
    units = np.float32(2.0) ** np.arange(-40, 40, dtype=np.float32)
    mantissas = np.array([0x3F800000, 0x3F800001, 0x3FFFFFFF, 0x3FFFFFFE, 0x3FAAAAAA], np.uint32).view(np.float32)
    little = np.array([0x3F7FFFFE, 0x3F7FFFFF, 0x3F800000, 0x3F800001], np.uint32).view(np.float32)
    cases = [
        (sign * unit * less * np.float32(2.0**-24), more, unit * m)
        for unit in units for m in mantissas for less in little for more in little for sign in (1, -1)
    ]  # fmt: skip
    a, b, c = np.array(cases, np.float32).T.copy()
    check(a, b, c)
    check(-a, b, -c)


def test_subnormal_numbers() -> None:
    random = np.random.default_rng(2)
    small = finite(random.integers(0, 0x01000000, (2, 20_000)) | random.integers(0, 2, (2, 20_000)) << 31)
    ones = finite(random.integers(0x3E000000, 0x40800000, 20_000))
    check(small[0], ones, small[1])
    halves = finite(random.integers(0x1F000000, 0x20800000, (2, 20_000)))  # products about the least subnormal
    check(halves[0], halves[1], small[1])
    check(halves[0], -halves[1], np.zeros(20_000, np.float32))


def test_numbers_about_the_largest() -> None:
    random = np.random.default_rng(3)
    a, b = finite(random.integers(0x5F000000, 0x5F800000, (2, 20_000)))  # products from 2^126 to 2^128
    c = finite(random.integers(0x7E000000, 0x7F800000, 20_000) | random.integers(0, 2, 20_000) << 31)
    check(a, b, c)
    check(a, b, -c)
    top = np.array([0x7F7FFFFF] * 3, np.uint32).view(np.float32)
    half = np.float32(2.0**103)  # half a unit of the largest: the tie goes to infinity
    check(top, np.ones(3, np.float32), np.array([half, np.nextafter(half, np.float32(0)), -half], np.float32))


@given(st.tuples(*[st.floats(width=32, allow_nan=False, allow_infinity=False)] * 3))
@settings(max_examples=examples(2000))
def test_numbers_that_hypothesis_picks(numbers: tuple[float, float, float]) -> None:
    check(*(np.array([x], np.float32) for x in numbers))


@pytest.mark.parametrize(
    ("a", "b", "c", "expected"),
    [
        (0.0, -1.0, 0.0, 0.0), (0.0, -1.0, -0.0, -0.0), (1.0, 1.0, -1.0, 0.0), (-0.0, 1.0, -0.0, -0.0),
        (math.inf, 2.0, 1.0, math.inf), (math.inf, -2.0, 1.0, -math.inf), (1.0, 1.0, -math.inf, -math.inf),
        (math.inf, 0.0, 1.0, math.nan), (math.inf, 1.0, -math.inf, math.nan), (math.nan, 1.0, 1.0, math.nan),
        (1.0, 1.0, math.nan, math.nan), (-1e-40, 1e-40, 0.0, -0.0),
    ],
)  # fmt: skip
def test_zeros_infinities_and_nan(a: float, b: float, c: float, expected: float) -> None:
    found = fma(np.float32(a), np.float32(b), np.float32(c))
    assert math.isnan(found) if math.isnan(expected) else math.copysign(1, found) == math.copysign(1, expected)
    assert math.isnan(expected) or found == expected


def test_arrays_are_broadcast() -> None:
    x, w = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(3, dtype=np.float32)
    assert fma(x[:, None], w[:, None], np.float32(1)).shape == (2, 3, 3)

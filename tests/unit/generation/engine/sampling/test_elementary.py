"""exp64 and log64: near the truth, and the same bits as plain floats give."""

from __future__ import annotations

import math
import random
import re
import struct
from decimal import Context, Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.generation.engine.sampling import sampling_reference
from services.generation.engine.sampling.philox import exp64, log64
from tests.examples import examples

_EXACT = Context(prec=60)
_DOCS = Path(__file__).parents[5] / "docs"


def bits(x: float) -> bytes:
    return b"NaN" if math.isnan(x) else struct.pack("<d", x)


def samples(seed: int, count: int) -> list[float]:
    rng = random.Random(seed)
    kinds = (
        lambda: rng.uniform(-30.0, 0.0),
        lambda: rng.uniform(-720.0, 720.0),
        lambda: (rng.getrandbits(32) + 0.5) / 2**32,
        lambda: math.ldexp(rng.uniform(-1.0, 1.0), rng.randrange(-80, 1)),
        lambda: 1.0 + rng.uniform(-0.5, 0.5),
        lambda: struct.unpack("<d", rng.getrandbits(64).to_bytes(8, "little"))[0],
    )
    return [kinds[number % len(kinds)]() for number in range(count)]


@pytest.mark.slow
def test_100_000_values_have_the_bits_of_plain_floats() -> None:
    """Python's floats are never fused: equality shows that the compiled programs are not either."""
    values = samples(1, 100_000)
    assert [bits(exp64(x)) for x in values] == [bits(sampling_reference.exp64(x)) for x in values]
    assert [bits(log64(x)) for x in values] == [bits(sampling_reference.log64(x)) for x in values]


@given(st.floats())
@settings(deadline=None, max_examples=examples(500))
def test_any_float_has_the_bits_of_plain_floats(x: float) -> None:
    assert bits(exp64(x)) == bits(sampling_reference.exp64(x))
    assert bits(log64(x)) == bits(sampling_reference.log64(x))


def test_both_are_within_one_ulp() -> None:
    for x in samples(2, 6_000):
        if -708.0 <= x <= 709.0:
            assert abs(Decimal(exp64(x)) - Decimal(x).exp(_EXACT)) < Decimal(math.ulp(exp64(x)))
        if 0.0 < x < math.inf:
            assert abs(Decimal(log64(x)) - Decimal(x).ln(_EXACT)) < Decimal(math.ulp(log64(x)))


def test_the_page_has_the_coefficients() -> None:
    page = "".join(path.read_text() for path in sorted(_DOCS.glob("numerics*.md")))
    rows = re.findall(r"^\| (\d+) \| (0x\S+) \| \|(?: (\d+) \| (0x\S+) \|)?", page, re.MULTILINE)
    assert {int(n): float.fromhex(value) for n, value, _, _ in rows} == {
        n: 1.0 / math.factorial(n) for n in range(2, 14)
    }
    assert {int(n): float.fromhex(value) for _, _, n, value in rows if n} == {
        n: 2.0 / (2 * n + 1) for n in range(1, 11)
    }


@pytest.mark.parametrize(
    ("x", "exp", "log"),
    [
        (0.0, 1.0, -math.inf),
        (-0.0, 1.0, -math.inf),
        (1.0, math.e, 0.0),
        (math.inf, math.inf, math.inf),
        (-math.inf, 0.0, math.nan),
        (-708.1, 0.0, math.nan),
        (709.1, math.inf, math.log(709.1)),
        (5e-324, 1.0, math.log(5e-324)),
        (math.nan, math.nan, math.nan),
    ],
)
def test_the_ends_of_the_ranges(x: float, exp: float, log: float) -> None:
    assert exp64(x) == pytest.approx(exp, rel=1e-15, nan_ok=True)
    assert log64(x) == pytest.approx(log, rel=1e-15, nan_ok=True)

"""Tables of cosines and sines: rounded nearly as well as they can be, and the page's program to the bit."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from services.generation.target.config.rope import rotary, rotations
from services.generation.target.reference.operations import cosines_and_sines

POSITIONS = 131_072
FREQUENCIES = rotary({"rope_theta": 5e5}, 64, POSITIONS)[0]


def ulps(found: np.float32, exact: mpmath.mpf) -> float:
    """|found - exact| in units of the last place of the float32 next to `exact`."""
    return float(abs(mpmath.mpf(float(found)) - exact) / mpmath.mpf(float(np.spacing(np.float32(abs(exact))))))


@pytest.fixture(scope="module")
def tables() -> tuple[np.ndarray, np.ndarray]:
    return rotations(FREQUENCIES, 1.0, POSITIONS)


def places(tables: tuple[np.ndarray, np.ndarray]) -> list[tuple[int, int]]:
    """(position, frequency): some at random, and for each frequency where cosine and sine are next to 0."""
    random = np.random.default_rng(0)
    some = list(zip(random.integers(0, POSITIONS, 2000), random.integers(0, 32, 2000), strict=True))
    for table in tables:
        nearest = np.argsort(np.abs(table[1:]), axis=0)[:10] + 1
        some += [(int(p), f) for f in range(32) for p in nearest[:, f]]
    return [*some, *((POSITIONS - 1, f) for f in range(32))]


@pytest.mark.slow
def test_tables_are_within_half_a_unit_of_the_last_place_and_a_hundredth(tables: tuple[np.ndarray, np.ndarray]) -> None:
    with mpmath.workdps(40):
        for position, f in places(tables):
            angle = mpmath.mpf(float(np.float32(position) * np.float32(FREQUENCIES[f])))
            assert ulps(tables[0][position, f], mpmath.cos(angle)) <= 0.51, (position, f)
            assert ulps(tables[1][position, f], mpmath.sin(angle)) <= 0.51, (position, f)


def hardest_angles() -> np.ndarray:
    """The float32 numbers next to multiples of pi / 2 that come nearest to one, up to 2^20 * pi / 2."""
    quarter = [float.fromhex(part) for part in ("0x1.921fb544p+0", "0x1.0b4611a6263p-34")]
    turns = np.arange(1, 1 << 20, dtype=np.float64)
    angles = (turns * (quarter[0] + quarter[1])).astype(np.float32)
    distances = np.abs((angles.astype(np.float64) - turns * quarter[0]) - turns * quarter[1])
    return angles[np.argsort(distances / turns)[:300]]


def test_angles_next_to_a_quarter_turn_keep_all_their_bits() -> None:
    angles = hardest_angles()
    cosines, sines = rotations(angles.tolist(), 1.0, 2)
    assert min(np.abs(cosines[1]).min(), np.abs(sines[1]).min()) < 1e-7
    with mpmath.workdps(40):
        for i, angle in enumerate(map(float, angles)):
            assert ulps(cosines[1, i], mpmath.cos(angle)) <= 0.51, angle
            assert ulps(sines[1, i], mpmath.sin(angle)) <= 0.51, angle
    page = cosines_and_sines(np.ones(1, np.int64), angles.tolist(), 1.0)
    assert np.array_equal(cosines[1], page[0][0])
    assert np.array_equal(sines[1], page[1][0])


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.0, 1.2079441541679836])
def test_tables_are_those_of_the_page(factor: float) -> None:
    found = rotations(FREQUENCIES, factor, POSITIONS)
    for first in range(0, POSITIONS, 1 << 14):
        some = np.arange(first, first + (1 << 14))
        expected = cosines_and_sines(some, FREQUENCIES, factor)
        for table, page in zip(found, expected, strict=True):
            assert np.array_equal(table[some].view(np.uint32), page.view(np.uint32))

"""Frequencies and tables of rotations, and roots: the numbers that the page asks for, whatever C's library does."""

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama import LlamaConfig

from services.generation.target.config.config import read_config
from services.generation.target.config.rope import Rotation, inverse_root, rotary, rotation_of, rotations
from services.generation.target.errors import ConfigInvalid
from tests.fakes.tiny_model import make_tiny_model
from tests.numerics.operations import cosines_and_sines

CONTEXT = 8192
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "linear, not a binary fraction": {"rope_type": "linear", "factor": 2.7},
    "llama3": {**LLAMA3, "factor": 8.0, "original_max_position_embeddings": 8192},
    "llama3, short": {**LLAMA3, "factor": 32.0, "original_max_position_embeddings": 64},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
    "yarn, factor null": {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 2048},
    "yarn, no stretching": {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 8192},
    "yarn, attention factor": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 1024, "attention_factor": 0.8,
    },
    "yarn, mscale, no truncation": {
        "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.707,
        "mscale_all_dim": 1.0, "beta_fast": 24.0, "beta_slow": 1.5, "truncate": False,
    },
    "yarn, one mscale": {
        "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.707,
    },
    "yarn, an empty ramp": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4},
}  # fmt: skip
SHAPES = list(product((24, 64, 80, 96, 128), (1e4, 1.5e5, 5e5, 1e6)))


def formulas_in_float64(
    monkeypatch: pytest.MonkeyPatch, parameters: dict[str, Any], dim: int
) -> tuple[np.ndarray, float]:
    """transformers' own function, with torch's names of float32 meaning float64 while it runs."""
    config = LlamaConfig(
        head_dim=dim, num_attention_heads=1, max_position_embeddings=CONTEXT, rope_parameters=dict(parameters)
    )
    with monkeypatch.context() as patch:
        patch.setattr(torch, "float", torch.float64)
        patch.setattr(torch, "float32", torch.float64)
        frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"))
    assert frequencies.dtype == torch.float64
    return frequencies.numpy(), factor


def ulps(found: np.ndarray, expected: np.ndarray) -> int:
    bits = (values.astype(np.float32).view(np.int32).astype(np.int64) for values in (found, expected))
    return int(np.abs(np.subtract(*bits)).max())


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=list(SCALINGS))
@pytest.mark.filterwarnings("ignore")
def test_frequencies_are_those_of_transformers_formulas(
    monkeypatch: pytest.MonkeyPatch, scaling: dict[str, Any]
) -> None:
    for dim, theta in SHAPES:
        parameters = {"rope_theta": theta, **scaling}
        frequencies, factor = rotary(parameters, dim, CONTEXT)
        expected, expected_factor = formulas_in_float64(monkeypatch, parameters, dim)
        assert ulps(np.array(frequencies), expected) <= 1, (dim, theta)
        assert factor == np.float32(expected_factor)


@pytest.mark.parametrize("kind", ["default", "dynamic"])
def test_unscaled_frequencies_are_correctly_rounded(kind: str) -> None:
    for dim, theta in SHAPES:
        found, factor = rotary({"rope_type": kind, "rope_theta": theta, "factor": 2.0}, dim, CONTEXT)
        with mpmath.workdps(60):
            exact = [float(mpmath.power(theta, -mpmath.mpf(2 * i) / dim)) for i in range(dim // 2)]
        assert np.array_equal(np.array(found), np.array(exact).astype(np.float32).astype(np.float64))
        assert factor == 1.0


def test_divisors_divide_before_anything_is_rounded() -> None:
    parameters = {"rope_theta": 5e5}
    found, _ = rotary(parameters, 64, CONTEXT, [float(np.float32(1.1))] * 32)
    with mpmath.workdps(60):
        divisor = mpmath.mpf(float(np.float32(1.1)))
        exact = [float(mpmath.power(5e5, -mpmath.mpf(2 * i) / 64) / divisor) for i in range(32)]
    assert np.array_equal(np.array(found), np.array(exact).astype(np.float32).astype(np.float64))


@pytest.mark.parametrize(
    "change",
    [
        {"rope_theta": 0.0}, {"rope_theta": 1.0}, {"rope_theta": True}, {"rope_theta": "ten"}, {"factor": None},
        {"factor": -1.0}, {"factor": 1e-300}, {"factor": float("nan")}, {"factor": float("inf")},
        {"low_freq_factor": 0},
    ],
    ids=str,
)  # fmt: skip
def test_a_number_out_of_range_is_named(change: dict[str, Any]) -> None:
    parameters = {"rope_theta": 1e4, **SCALINGS["llama3"]} | change
    with pytest.raises(ConfigInvalid, match=next(iter(change))):
        rotary(parameters, 64, CONTEXT)


@pytest.mark.parametrize("kind", ["default", "proportional"])
def test_a_share_that_is_null_rotates_all(kind: str) -> None:
    parameters = {"rope_type": kind, "rope_theta": 1e6}
    null = rotation_of(parameters | {"partial_rotary_factor": None}, 64, CONTEXT)
    assert null == rotation_of(parameters | {"partial_rotary_factor": 1.0}, 64, CONTEXT)


def test_configurations_of_directories_read_these_frequencies(tmp_path: Path) -> None:
    parameters = {"rope_theta": 5e5, **SCALINGS["llama3, short"]}
    config = read_config(make_tiny_model(tmp_path, rope_parameters=parameters))
    assert config.rotations == (Rotation(*rotary(parameters, config.head_dim, 512)),) * 2
    assert config.context_length == 512


POSITIONS = 131_072
FREQUENCIES = rotary({"rope_theta": 5e5}, 64, POSITIONS)[0]


def error_in_ulps(found: np.float32, exact: mpmath.mpf) -> float:
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
            assert error_in_ulps(tables[0][position, f], mpmath.cos(angle)) <= 0.51, (position, f)
            assert error_in_ulps(tables[1][position, f], mpmath.sin(angle)) <= 0.51, (position, f)


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
            assert error_in_ulps(cosines[1, i], mpmath.cos(angle)) <= 0.51, angle
            assert error_in_ulps(sines[1, i], mpmath.sin(angle)) <= 0.51, angle
    page = cosines_and_sines(np.ones(1, np.int64), angles.tolist(), 1.0)
    assert np.array_equal(cosines[1], page[0][0])
    assert np.array_equal(sines[1], page[1][0])


@pytest.mark.slow
def test_tables_are_those_of_the_page(tables: tuple[np.ndarray, np.ndarray]) -> None:
    """A factor multiplies what the first table holds."""
    part, factor = 1 << 14, 1.2079441541679836
    for first in range(0, POSITIONS, part):
        same_as_the_page(tables, first, 1.0)
    same_as_the_page(rotations(FREQUENCIES, factor, part), 0, factor)


def same_as_the_page(tables: tuple[np.ndarray, np.ndarray], first: int, factor: float) -> None:
    some = np.arange(first, first + (1 << 14))
    for table, page in zip(tables, cosines_and_sines(some, FREQUENCIES, factor), strict=True):
        assert np.array_equal(table[some].view(np.uint32), page.view(np.uint32))


SIZES = (*range(1, 4_000), *range(4_000, 40_000, 16))
"""Larger ones of models are multiples of 16."""


def between(value: np.floating, towards: float) -> Fraction:
    """The number half way from a float to its neighbour."""
    return (Fraction(float(value)) + Fraction(float(np.nextafter(value, type(value)(towards))))) / 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize(("of", "power"), [(math.sqrt, 1), (inverse_root, -1)])
def test_roots_of_all_sizes_are_the_nearest(of: Callable[[float], float], power: int, kind: type) -> None:
    for size in SIZES if kind is np.float32 else SIZES[:3_999]:
        found, exact = kind(of(size)), Fraction(size) ** power
        assert between(found, 0.0) ** 2 < exact < between(found, np.inf) ** 2, size

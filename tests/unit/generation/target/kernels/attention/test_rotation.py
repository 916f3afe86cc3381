"""Rotated queries, and keys and values on their way through the cache, follow the page to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from services.generation.target.config.rope import rotary
from tests.numerics.arithmetic import Heads
from tests.numerics.bits import any_bits, assert_same_bits
from tests.numerics.kernels import KernelArithmetic
from tests.numerics.reference import ReferenceArithmetic

PAGE = ReferenceArithmetic()
POSITIONS = np.array([0, 1, 63, 64, 1000, 4095])


def random_heads(dim: int, seed: int, norms: bool) -> Heads:
    random = np.random.default_rng(seed)
    rows = len(POSITIONS)
    queries, keys, values = (random.standard_normal((rows, heads, dim), np.float32) for heads in (6, 2, 2))
    weights = random.standard_normal((2, dim), np.float32)
    return Heads(queries, keys, values, (weights[0], weights[1]) if norms else None)


def check(heads: Heads, factor: float = 1.0, cache_dtype: str = "float32", members: int = 1) -> None:
    frequencies, _ = rotary({"rope_theta": 1e4}, heads.queries.shape[2], 4096)
    kernels = KernelArithmetic(members=members)
    found = kernels.rotation(heads, POSITIONS, frequencies, factor, cache_dtype)
    expected = PAGE.rotation(heads, POSITIONS, frequencies, factor, cache_dtype)
    for one, other in zip(found, expected, strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("norms", [False, True], ids=["plain", "normed heads"])
@pytest.mark.parametrize("dim", [2, 8, 12, 24, 34, 64, 80, 96, 128, 256])
def test_heads_of_every_size(dim: int, norms: bool) -> None:
    check(random_heads(dim, dim, norms))


@pytest.mark.parametrize("cache_dtype", ["float32", "bfloat16"])
def test_the_attention_factor_and_the_form_of_the_cache(cache_dtype: str) -> None:
    for members in (1, 3):
        check(random_heads(64, 1, norms=True), 1.2079441541679836, cache_dtype, members)


@pytest.mark.parametrize("cache_dtype", ["float32", "bfloat16"])
def test_numbers_of_all_magnitudes(cache_dtype: str) -> None:
    """Numbers that bfloat16 has no exponent for, ties, subnormals and infinities are among them."""
    random = np.random.default_rng(2)
    heads = random_heads(64, 2, norms=False)
    values = any_bits(random, *heads.values.shape)
    ties = (random.integers(0, 2**16, 64, np.uint32) << 16 | 0x8000).view(np.float32)
    values[0, 0] = np.where(np.isfinite(ties), ties, 1)
    values[1, 0, :5] = [np.inf, -np.inf, np.nan, 3.4e38, -1e-45]
    check(replace(heads, keys=any_bits(random, *heads.keys.shape), values=values), cache_dtype=cache_dtype)

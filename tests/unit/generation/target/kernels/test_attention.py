"""Attention and rotation, held against numpy."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from services.generation.target.config.rope import rotary
from tests.examples import grid
from tests.numerics.arithmetic import Heads, any_bits, assert_same_bits
from tests.numerics.kernels import KernelArithmetic
from tests.numerics.reference import ReferenceArithmetic

PAGE = ReferenceArithmetic()


def drawn(
    random: np.random.Generator, rows: int, heads: int, length: int, kv_heads: int, dim: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys and values; bfloat16 holds keys and values exactly. Scores spread, so that weights underflow."""
    queries = random.normal(0, 3, (rows, heads, dim)).astype(np.float32)
    keys, values = random.standard_normal((2, length, kv_heads, dim), np.float32)
    return queries, *((x.view(np.uint32) & 0xFFFF0000).view(np.float32) for x in (keys, values))


def check(
    queries: np.ndarray, keys: np.ndarray, values: np.ndarray, positions: np.ndarray, window: int = 0,
    cache_dtype: str = "float32", teams: Sequence[int] = (1,), runs: np.ndarray | None = None, cap: float = 0.0,
    sinks: np.ndarray | None = None, chunk: int = 0,
) -> None:  # fmt: skip
    """`teams`: of so many members each."""
    expected = PAGE.attention(queries, keys, values, positions, window, cache_dtype, cap, sinks, chunk)
    for members in teams:
        kernels = KernelArithmetic(members=members)
        found = kernels.attention(queries, keys, values, positions, window, cache_dtype, cap, sinks, chunk, runs)
        assert_same_bits(found, expected)


@pytest.mark.parametrize(("group_size", "dim"), grid(5, [1, 2, 3, 5, 8], [8, 12, 64, 80, 128]))
@pytest.mark.parametrize("cache_dtype", ["float32", "int8"])
def test_heads_that_share_keys(group_size: int, dim: int, cache_dtype: str) -> None:
    random = np.random.default_rng(dim + group_size)
    kv_heads = 2 if dim < 100 else 1
    positions = np.array([0, 62, 63, 64, 150])
    check(*drawn(random, 5, group_size * kv_heads, 151, kv_heads, dim), positions, cache_dtype=cache_dtype)


@pytest.mark.parametrize("window", [0, 1, 40, 64, 65, 130, 1000])
@pytest.mark.parametrize("cache_dtype", ["float32", "bfloat16", "int8"])
def test_windows(window: int, cache_dtype: str) -> None:
    random = np.random.default_rng(window)
    positions = np.array([0, 39, 40, 63, 64, 127, 128, 129, 299])
    check(*drawn(random, 9, 4, 300, 2, 16), positions, window, cache_dtype, (1, 2, 3))


@pytest.mark.parametrize("group_size", [1, 5])
def test_scores_below_a_cap(group_size: int) -> None:
    random = np.random.default_rng(4)
    positions, runs = np.array([0, 63, 64, 150]), np.array([1, 50, 65, 140])
    check(*drawn(random, 4, 2 * group_size, 151, 2, 24), positions, 100, teams=(1, 3), runs=runs, cap=7.0)


@pytest.mark.parametrize("chunk", [1, 50, 64, 1000])
def test_chunks(chunk: int) -> None:
    random = np.random.default_rng(9)
    positions, runs = np.array([0, 49, 50, 63, 64, 150]), np.array([1, 50, 51, 50, 65, 90])
    check(*drawn(random, 6, 4, 151, 2, 24), positions, 60, teams=(1, 3), runs=runs, chunk=chunk)


@pytest.mark.parametrize("group_size", [1, 5])
def test_sinks(group_size: int) -> None:
    random = np.random.default_rng(8)
    positions, runs = np.array([0, 63, 64, 150]), np.array([1, 50, 65, 140])
    sinks = random.normal(0, 10, 2 * group_size).astype(np.float32)
    check(*drawn(random, 4, 2 * group_size, 151, 2, 24), positions, 100, teams=(1, 3), runs=runs, sinks=sinks)


@pytest.mark.parametrize("cache_dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("window", [0, 50])
def test_branches_of_trees(window: int, cache_dtype: str) -> None:
    """Rows whose last positions lie in slots of their own, a branch over a block's border among them."""
    random = np.random.default_rng(4)
    positions = np.array([70, 71, 130, 130, 135, 66, 5])
    runs = np.array([70, 60, 120, 131, 127, 64, 1])
    check(*drawn(random, 7, 6, 136, 2, 24), positions, window, cache_dtype, (1, 2), runs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cache_dtype", "heads", "bounds"),
    grid(3, ["float32", "int8"], [(1, 24), (3, 16), (5, 80), (30, 8)], [(0, 0), (200, 0), (192, 0), (0, 250), (70, 0)]),
)
def test_rows_that_see_blocks_whole_go_through_them_together(
    heads: tuple[int, int], bounds: tuple[int, int], cache_dtype: str
) -> None:
    """Consecutive rows of a prompt, rows of a tree, and a row that sees less, at the edges of windows and chunks."""
    (group_size, dim), (window, chunk) = heads, bounds
    random = np.random.default_rng(group_size)
    positions = np.array([*range(250, 259), 399, *range(380, 399), 383, 384, 385, 70, 320, 321])
    runs = np.where(np.arange(len(positions)) % 3 == 0, 381, 400)
    queries, keys, values = drawn(random, len(positions), group_size, 400, 1, dim)
    sinks = random.normal(0, 10, group_size).astype(np.float32)
    rest = {"runs": runs, "chunk": chunk, "sinks": sinks, "cap": 20.0}
    check(queries, keys, values, positions, window, cache_dtype, (1, 2), **rest)


@pytest.mark.parametrize("cache_dtype", ["float32", "int8"])
def test_scores_of_all_magnitudes(cache_dtype: str) -> None:
    random = np.random.default_rng(5)
    queries, keys, values = any_bits(random, 20, 2, 4), any_bits(random, 100, 2, 4), any_bits(random, 100, 2, 4)
    positions = np.arange(80, 100)
    check(queries, keys, values, positions, cache_dtype=cache_dtype)
    tiny = np.float32(1e-30)
    check(queries * np.float32(1e-35), keys * tiny, values * tiny, positions, cache_dtype=cache_dtype)


def test_equal_and_negative_scores() -> None:
    queries = np.full((2, 2, 8), -1, np.float32)
    keys, values = np.ones((70, 1, 8), np.float32), np.arange(560, dtype=np.float32).reshape(70, 1, 8)
    check(queries, keys, values, np.array([69, 3]))
    check(queries, -keys, -values, np.array([69, 3]))


@pytest.mark.parametrize("cache_dtype", ["float32", "int8"])
def test_infinite_and_undefined_keys_and_values(cache_dtype: str) -> None:
    random = np.random.default_rng(6)
    queries, keys, values = drawn(random, 6, 2, 140, 1, 16)
    keys[10, 0, 3], keys[80, 0, 1], values[75, 0, 0], values[130, 0, 5] = np.inf, np.nan, -np.inf, np.nan
    check(queries, keys, values, np.array([5, 12, 70, 76, 100, 139]), cache_dtype=cache_dtype)
    check(queries, keys, values, np.array([5, 73, 74, 129, 100, 139]), 3, cache_dtype)


POSITIONS = np.array([0, 1, 63, 64, 1000, 4095])


def random_heads(dim: int, seed: int, norms: bool) -> Heads:
    random = np.random.default_rng(seed)
    rows = len(POSITIONS)
    queries, keys, values = (random.standard_normal((rows, heads, dim), np.float32) for heads in (6, 2, 2))
    weights = random.standard_normal((2, dim), np.float32)
    return Heads(queries, keys, values, (weights[0], weights[1]) if norms else None)


def check_rotation(heads: Heads, factor: float = 1.0, cache_dtype: str = "float32", members: int = 1) -> None:
    frequencies, _ = rotary({"rope_theta": 1e4}, heads.queries.shape[2], 4096)
    kernels = KernelArithmetic(members=members)
    found = kernels.rotation(heads, POSITIONS, frequencies, factor, cache_dtype)
    expected = PAGE.rotation(heads, POSITIONS, frequencies, factor, cache_dtype)
    for one, other in zip(found, expected, strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("norms", [False, True], ids=["plain", "normed heads"])
@pytest.mark.parametrize("dim", [2, 8, 12, 24, 34, 64, 80, 96, 128, 256])
def test_heads_of_every_size(dim: int, norms: bool) -> None:
    check_rotation(random_heads(dim, dim, norms))


@pytest.mark.parametrize("cache_dtype", ["float32", "bfloat16", "int8"])
def test_the_attention_factor_and_the_form_of_the_cache(cache_dtype: str) -> None:
    for members in (1, 3):
        check_rotation(random_heads(64, 1, norms=True), 1.2079441541679836, cache_dtype, members)


@pytest.mark.parametrize("cache_dtype", ["float32", "bfloat16", "int8"])
def test_rotated_numbers_of_all_magnitudes(cache_dtype: str) -> None:
    """Numbers that bfloat16 has no exponent for, ties, subnormals and infinities are among them."""
    random = np.random.default_rng(2)
    heads = random_heads(64, 2, norms=False)
    values = any_bits(random, *heads.values.shape)
    ties = (random.integers(0, 2**16, 64, np.uint32) << 16 | 0x8000).view(np.float32)
    values[0, 0] = np.where(np.isfinite(ties), ties, 1)
    values[1, 0, :5] = [np.inf, -np.inf, np.nan, 3.4e38, -1e-45]
    check_rotation(replace(heads, keys=any_bits(random, *heads.keys.shape), values=values), cache_dtype=cache_dtype)

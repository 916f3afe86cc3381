"""Linear layers and embeddings follow the page to the bit, for every storage, shape and number of rows."""

from __future__ import annotations

import numpy as np
import pytest
from gguf.quants import dequantize

from services.generation.target.files.stored_tensor import LAYOUTS, StoredTensor
from tests.fakes.tiny_gguf import random_rows
from tests.numerics.bits import any_bits, assert_same_bits
from tests.numerics.kernels import KernelArithmetic
from tests.numerics.reference import ReferenceArithmetic

PAGE = ReferenceArithmetic()
ROWS = (1, 2, 3, 4, 5, 7, 9, 13, 24, 25, 31, 40)
EACH = [pytest.param(each, marks=() if each in ("float32", "q4_1", "q6_k") else pytest.mark.slow) for each in LAYOUTS]
"""All storages; without the slow ones, one of each layout: plain numbers, blocks of 32, blocks of 256."""
SHAPES = {1: ((70, 96), (70, 1536), (33, 40)), 32: ((70, 96), (70, 1536)), 256: ((70, 256), (35, 768))}


def stored(storage: str, outputs: int, inputs: int, random: np.random.Generator) -> StoredTensor:
    data = random_rows(storage, outputs, inputs, random)
    return StoredTensor("weights", storage, (outputs, inputs), data)


def plain(values: np.ndarray) -> StoredTensor:
    return StoredTensor("weights", "float32", values.shape, values.view(np.uint8))


@pytest.mark.slow
@pytest.mark.parametrize("storage", LAYOUTS)
def test_every_storage_at_every_way_that_rows_go(storage: str) -> None:
    random = np.random.default_rng(1)
    for outputs, inputs in SHAPES[LAYOUTS[storage].weights]:
        weights = stored(storage, outputs, inputs, random)
        x, bias = (random.standard_normal(shape, np.float32) for shape in ((max(ROWS), inputs), outputs))
        expected = PAGE.linear(x, weights, bias)
        for rows in ROWS:
            assert_same_bits(KernelArithmetic().linear(x[:rows], weights, bias), expected[:rows])


@pytest.mark.parametrize("storage", ["float32", "q4_1", "q6_k"])
def test_members_of_a_team_share_the_columns(storage: str) -> None:
    random = np.random.default_rng(2)
    weights = stored(storage, 300, 256, random)
    x = random.standard_normal((40, 256), np.float32)
    expected = PAGE.linear(x, weights)
    for rows in (1, 6, 40):
        assert_same_bits(KernelArithmetic(members=3).linear(x[:rows], weights), expected[:rows])


@pytest.mark.parametrize("rows", [1, 6, 40])
def test_numbers_of_all_magnitudes(rows: int) -> None:
    """Products and sums overflow and become subnormal; weights are what a file can hold, -0 too."""
    random = np.random.default_rng(3)
    for _ in range(5):
        weights, x = any_bits(random, 64, 160), any_bits(random, rows, 160)
        x[0] *= np.float32(1e-38)
        assert_same_bits(KernelArithmetic().linear(x, plain(weights)), PAGE.linear(x, plain(weights)))


@pytest.mark.parametrize("storage", EACH)
def test_infinite_and_undefined_inputs(storage: str) -> None:
    random = np.random.default_rng(4)
    weights = stored(storage, 40, 256, random)
    x = random.standard_normal((6, 256), np.float32)
    x[0, 3], x[1, 200], x[2, 255], x[3, [0, 1]], x[4, 130] = np.inf, -np.inf, np.nan, [np.inf, -np.inf], -0.0
    expected = PAGE.linear(x, weights)
    assert np.isinf(expected).any()
    assert np.isnan(expected).any()
    assert_same_bits(KernelArithmetic().linear(x, weights), expected)


def test_subnormal_sums_are_kept() -> None:
    x, weights = np.full((1, 96), 1e-20, np.float32), np.full((32, 96), 1e-20, np.float32)
    found = KernelArithmetic().linear(x, plain(weights))
    assert (found > 0).all()
    assert (found < np.finfo(np.float32).tiny).all()
    assert_same_bits(found, PAGE.linear(x, plain(weights)))


@pytest.mark.parametrize("storage", EACH)
def test_embeddings(storage: str) -> None:
    random = np.random.default_rng(5)
    for _, size in SHAPES[LAYOUTS[storage].weights]:
        weights = stored(storage, 70, size, random)
        tokens = np.array([0, 69, 31, 32, 33, 31], np.int64)
        assert_same_bits(KernelArithmetic().embedding(weights, tokens), PAGE.embedding(weights, tokens))


@pytest.mark.parametrize("storage", ["q5_0", "q5_1", "iq4_nl"])
def test_widened_weights_are_the_values_that_dequantising_gives(storage: str) -> None:
    """Every integer under extreme scales: zeros, the smallest and the largest float16, and the ordinary ones."""
    random, layout = np.random.default_rng(6), LAYOUTS[storage]
    weights = stored(storage, 256, 64, random)
    blocks = weights.data.reshape(-1, layout.size)
    extremes = np.array([0.0, -0.0, 2.0**-24, -(2.0**-14), 1 / 3, 65504.0, -65504.0, 1.0], "<f2").view(np.uint8)
    places = random.integers(0, 8, (len(blocks) // 2, layout.halves // 2))
    blocks[::2, : layout.halves] = extremes.reshape(-1, 2)[places].reshape(len(places), -1)
    expected = dequantize(weights.data, layout.ggml) + np.float32(0.0)
    assert_same_bits(KernelArithmetic().embedding(weights, np.arange(256)), expected)


def test_an_embedding_of_negative_zero_is_positive_zero() -> None:
    weights = plain(np.array([[-0.0, 0.0, -1e-45, 1e-45] * 8], np.float32))
    found = KernelArithmetic().embedding(weights, np.zeros(1, np.int64))
    assert_same_bits(found, PAGE.embedding(weights, np.zeros(1, np.int64)))
    assert not np.signbit(found[0, 0])
    assert np.signbit(found[0, 2])

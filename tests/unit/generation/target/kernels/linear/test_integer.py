"""Linear layers with int8 follow the page to the bit, for every quantised storage, shape and number of rows."""

from __future__ import annotations

import numpy as np
import pytest

from services.generation.target.files.stored_tensor import LAYOUTS, StoredTensor
from services.generation.target.kernels.storages import packed_as
from services.generation.target.reference.operations import quantised
from tests.fakes.tiny_gguf import random_rows
from tests.numerics.bits import any_bits, assert_same_bits
from tests.numerics.kernels import KernelArithmetic
from tests.numerics.reference import ReferenceArithmetic

PAGE = ReferenceArithmetic()
QUANTISED = [name for name in LAYOUTS if packed_as(name).quantised]
ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 13, 24, 40)
SHAPES = {32: ((70, 96), (70, 1536)), 256: ((70, 256), (35, 768))}


def stored(storage: str, outputs: int, inputs: int, random: np.random.Generator) -> StoredTensor:
    return StoredTensor("weights", storage, (outputs, inputs), random_rows(storage, outputs, inputs, random))


@pytest.mark.parametrize("storage", QUANTISED)
def test_the_reference_reads_the_weights_that_dequantising_gives(storage: str) -> None:
    weights = stored(storage, 5, 512, np.random.default_rng(0))
    found = quantised(weights)
    assert found is not None
    size = 512 // found.scales.shape[1]
    values = found.integers * np.repeat(found.scales.astype(np.float64), size, axis=1)
    if found.least is not None:
        values = values + np.repeat(found.least.astype(np.float64), size, axis=1)
    assert_same_bits(values.astype(np.float32), weights.values())


@pytest.mark.parametrize("storage", QUANTISED)
def test_every_storage_at_every_way_that_rows_go(storage: str) -> None:
    random = np.random.default_rng(1)
    for outputs, inputs in SHAPES[LAYOUTS[storage].weights]:
        weights = stored(storage, outputs, inputs, random)
        x, bias = (random.standard_normal(shape, np.float32) for shape in ((max(ROWS), inputs), outputs))
        expected = PAGE.linear(x, weights, bias, "int8")
        for rows in ROWS:
            assert_same_bits(KernelArithmetic().linear(x[:rows], weights, bias, "int8"), expected[:rows])


@pytest.mark.parametrize("storage", QUANTISED)
def test_the_largest_integers_do_not_saturate(storage: str) -> None:
    """Weights whose bytes are all ones, or all zeros, with x of one size: the largest sums that there are."""
    random = np.random.default_rng(2)
    for fill in (0xFF, 0x00, 0x80):
        weights = stored(storage, 40, 256, random)
        layout = LAYOUTS[storage]
        blocks = weights.data.reshape(-1, layout.size).copy()
        kept = blocks[:, layout.halves_at : layout.halves_at + layout.halves].copy()
        blocks[:] = fill
        blocks[:, layout.halves_at : layout.halves_at + layout.halves] = kept
        weights = StoredTensor("weights", storage, weights.shape, blocks.reshape(weights.data.shape))
        for x in (np.full((3, 256), 5.0, np.float32), np.full((3, 256), -5.0, np.float32)):
            x[1, ::2] *= -1
            assert_same_bits(KernelArithmetic().linear(x, weights, None, "int8"), PAGE.linear(x, weights, None, "int8"))


@pytest.mark.parametrize("storage", QUANTISED)
def test_numbers_of_all_magnitudes(storage: str) -> None:
    """Zeros, subnormals, infinities and what is no number: a group that is not finite makes its row undefined."""
    random = np.random.default_rng(3)
    weights = stored(storage, 40, 256, random)
    x = random.standard_normal((10, 256), np.float32)
    x[0], x[1, :40], x[2] = 0.0, -0.0, x[2] * np.float32(1e-38)
    x[3], x[4] = x[3] * np.float32(1e-20), x[4] * np.float32(1e30)
    x[5, 3], x[6, 255], x[7, 100] = np.inf, np.nan, -np.inf
    x[8, 5] = 3e38
    x[9] = any_bits(random, 256)
    expected = PAGE.linear(x, weights, None, "int8")
    assert np.isnan(expected[5:8]).all()
    assert np.isfinite(expected[:4]).all()
    assert_same_bits(KernelArithmetic().linear(x, weights, None, "int8"), expected)


@pytest.mark.parametrize("storage", ["q4_1", "q8_0"])
def test_members_of_a_team_share_the_columns(storage: str) -> None:
    random = np.random.default_rng(4)
    weights = stored(storage, 300, 256, random)
    x = random.standard_normal((40, 256), np.float32)
    expected = PAGE.linear(x, weights, None, "int8")
    for rows in (1, 6, 40):
        found = KernelArithmetic(members=3).linear(x[:rows], weights, None, "int8")
        assert_same_bits(found, expected[:rows])


def test_it_is_close_to_float32() -> None:
    random = np.random.default_rng(5)
    weights, x = stored("q4_1", 64, 576, random), random.standard_normal((4, 576), np.float32)
    exact = PAGE.linear(x, weights)
    error = PAGE.linear(x, weights, None, "int8") - exact
    assert np.abs(error).max() < 0.03 * np.abs(exact).max()

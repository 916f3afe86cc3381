"""Linear layers and embeddings, in float32 and in int8, follow the page to the bit."""

import numpy as np
import pytest
from gguf.quants import dequantize

from services.generation.target.files.stored_tensor import LAYOUTS, StoredTensor
from services.generation.target.kernels.storages import packed_as
from tests.numerics import operations
from tests.numerics.arithmetic import any_bits, assert_same_bits
from tests.numerics.emulator import Call, run_here
from tests.numerics.exponential import exponential_by_kernel
from tests.numerics.kernels import KernelArithmetic
from tests.numerics.operations import quantised
from tests.numerics.reference import ReferenceArithmetic
from tests.numerics.vectors import random_rows

PAGE = ReferenceArithmetic()
ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 13, 24, 25, 31, 40)
EACH = [pytest.param(each, marks=() if each in ("float32", "q4_1", "q6_k") else pytest.mark.long) for each in LAYOUTS]
"""All storages; without the long ones, one of each layout: plain numbers, blocks of 32, blocks of 256."""
QUANTISED = [name for name in LAYOUTS if packed_as(name).quantised]
SHAPES = {1: ((70, 96), (70, 1536), (33, 40)), 32: ((70, 96), (70, 1536)), 256: ((70, 256), (35, 768))}


def stored(storage: str, outputs: int, inputs: int, random: np.random.Generator) -> StoredTensor:
    data = random_rows(storage, outputs, inputs, random)
    return StoredTensor("weights", storage, (outputs, inputs), data)


def plain(values: np.ndarray) -> StoredTensor:
    return StoredTensor("weights", "float32", values.shape, values.view(np.uint8))


def check_every_way_that_rows_go(storage: str, arithmetic: str) -> None:
    random = np.random.default_rng(1)
    for outputs, inputs in SHAPES[LAYOUTS[storage].weights]:
        weights = stored(storage, outputs, inputs, random)
        x, bias = (random.standard_normal(shape, np.float32) for shape in ((max(ROWS), inputs), outputs))
        expected = PAGE.linear(x, weights, bias, arithmetic)
        for rows in ROWS:
            assert_same_bits(KernelArithmetic().linear(x[:rows], weights, bias, arithmetic), expected[:rows])


@pytest.mark.slow
@pytest.mark.parametrize("storage", EACH)
def test_every_storage_at_every_way_that_rows_go(storage: str) -> None:
    check_every_way_that_rows_go(storage, "float32")


@pytest.mark.slow
@pytest.mark.parametrize("storage", QUANTISED)
def test_int8_of_every_quantised_storage_at_every_way_that_rows_go(storage: str) -> None:
    check_every_way_that_rows_go(storage, "int8")


@pytest.mark.parametrize(
    ("storage", "arithmetic"),
    [("float32", "float32"), ("q4_1", "float32"), ("q6_k", "float32"), ("q4_1", "int8"), ("q8_0", "int8")],
)
def test_members_of_a_team_share_the_columns(storage: str, arithmetic: str) -> None:
    random = np.random.default_rng(2)
    weights = stored(storage, 300, 256, random)
    x = random.standard_normal((40, 256), np.float32)
    expected = PAGE.linear(x, weights, None, arithmetic)
    for rows in (1, 6, 40):
        found = KernelArithmetic(members=3).linear(x[:rows], weights, None, arithmetic)
        assert_same_bits(found, expected[:rows])


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


@pytest.mark.slow
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
def test_int8_of_numbers_of_all_magnitudes(storage: str) -> None:
    """Zeros, subnormals, infinities and NaN: a group that is not finite makes its row undefined."""
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


PAGE, KERNELS = ReferenceArithmetic(), KernelArithmetic()
SPECIAL = np.array(
    [0.0, -0.0, 1e-45, -1e-45, 1e-38, 88.0, 88.5, -88.0, -87.0, 87.0, np.nextafter(np.float32(-87), np.float32(-100)),
     103.0, -104.0, 3e38, -3e38, np.inf, -np.inf, np.nan], np.float32
)  # fmt: skip


@pytest.mark.parametrize("size", range(1, 51))
def test_norms_of_every_size(size: int) -> None:
    random = np.random.default_rng(size)
    v, weight = random.standard_normal((5, size), np.float32), random.standard_normal(size, np.float32)
    v[1] *= np.float32(1e-22)  # squares are subnormal
    v[2] *= np.float32(1e18)
    v[3] *= np.float32(1e30)  # squares overflow: all becomes 0
    v[4] = 0
    expected = PAGE.rms_norm(v, weight, 1e-5)
    assert not expected[3:].any()
    assert_same_bits(KERNELS.rms_norm(v, weight, 1e-5), expected)
    assert_same_bits(KernelArithmetic(members=3).rms_norm(v, weight, 1e-5), expected)


@pytest.mark.parametrize("size", [576, 2048, 2049])
def test_norms_of_hidden_states(size: int) -> None:
    random = np.random.default_rng(size)
    v, weight = random.standard_normal((3, size), np.float32), random.standard_normal(size, np.float32)
    for epsilon in (1e-5, 1e-6, 0.0):
        assert_same_bits(KERNELS.rms_norm(v, weight, epsilon), PAGE.rms_norm(v, weight, epsilon))


def test_norms_of_infinite_and_undefined_numbers() -> None:
    v, weight = np.ones((3, 40), np.float32), np.full(40, 2, np.float32)
    v[0, 7], v[1, 39], v[2, 0] = np.inf, -np.inf, np.nan
    assert_same_bits(KERNELS.rms_norm(v, weight, 1e-5), PAGE.rms_norm(v, weight, 1e-5))


def test_residuals() -> None:
    random = np.random.default_rng(6)
    x, y = any_bits(random, 7, 101), any_bits(random, 7, 101)
    x[0, :18], y[1, :18] = SPECIAL, SPECIAL
    assert_same_bits(KERNELS.added(x, y), operations.add(x, y))


@pytest.mark.parametrize("members", [1, 3])
def test_gated_and_scaled_rows(members: int) -> None:
    random = np.random.default_rng(11)
    x, y = any_bits(random, 7, 37), any_bits(random, 7, 37)
    x[0, :18], y[1, :18] = SPECIAL, SPECIAL
    out, scaled, gated, factor = np.full_like(x, np.nan), x.copy(), x.copy(), np.float32(0.7)
    strides = {f"{name}_stride": x.strides[0] for name in ("x", "y", "out")}
    gate = {"x": x, "y": y, "out": out, **strides, "size": 37}
    scale = {"x": scaled, "x_stride": x.strides[0], "size": 37, "factor": factor}
    rows = {"x": gated, "x_stride": x.strides[0], "gates": y, "gates_stride": y.strides[0], "size": 37}
    run_here([Call("rows", name, name, fields, {"rows": 7}, (), members)
              for name, fields in (("gate", gate), ("scale", scale), ("gate_rows", rows))])  # fmt: skip
    with np.errstate(all="ignore"):
        assert_same_bits(out, operations.gelu(x) * y)
        assert_same_bits(scaled, x * factor)
        assert_same_bits(gated, x * operations.sigmoid(y[:, :1]))


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize(("taps", "group", "groups"), [(1, 16, 2), (2, 20, 5), (3, 8, 4)])
def test_rows_are_convolved_within_their_block(taps: int, group: int, groups: int, members: int) -> None:
    random, rows, block, first = np.random.default_rng(12), 8, 4, 5
    x, weight = random.normal(size=(rows, group * groups)), random.normal(size=(taps, group * groups))
    deltas = random.normal(size=(rows, first + taps * groups))
    expected = np.zeros_like(x)
    for row in range(rows):
        for tap in range(min(taps, row % block + 1)):
            own = deltas[row, first + tap * groups : first + (tap + 1) * groups].repeat(group)
            expected[row] += x[row - tap] * (weight[tap] + own)
    found, weight, deltas = (np.ascontiguousarray(each, np.float32) for each in (x, weight, deltas))
    fields = {
        "x": found, "x_stride": found.strides[0], "deltas": deltas, "deltas_stride": deltas.strides[0], "first": first,
        "weight": weight, "size": group * groups, "taps": taps, "group": group, "block": block,
    }  # fmt: skip
    run_here([Call("rows", "convolve_block", "convolve_block", fields, {"rows": rows}, (), members)])
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("normalised", [True, False])
def test_experts(normalised: bool, members: int) -> None:
    random, kernels = np.random.default_rng(10), KernelArithmetic(members=members)
    for rows, experts, chosen in ((1, 128, 8), (40, 128, 8), (7, 3, 1), (5, 1, 1)):
        logits = random.normal(0, 5, (rows, experts)).astype(np.float32)
        logits[::3] = np.rint(logits[::3])  # many are equal
        bias = np.rint(random.normal(0, 1, experts)).astype(np.float32)
        for more in ({}, {"bias": bias}):
            found, expected = (a.routed(logits, chosen, normalised, **more) for a in (kernels, PAGE))
            assert found[0].tolist() == expected[0].tolist()
            assert_same_bits(found[1], expected[1])
        outputs = any_bits(random, rows, chosen, 45)
        assert_same_bits(kernels.mixed(outputs, found[1]), PAGE.mixed(outputs, found[1]))


@pytest.mark.parametrize("members", [1, 3])
def test_caps(members: int) -> None:
    random = np.random.default_rng(8)
    x = np.concatenate([SPECIAL, random.uniform(-90, 90, 1000).astype(np.float32), any_bits(random, 100)])[None]
    for cap in (1.0, 30.0, 0.1):
        assert_same_bits(KernelArithmetic(members=members).capped(x, cap), PAGE.capped(x, cap))


def test_the_hyperbolic_tangent_is_near_the_true_one() -> None:
    x = np.concatenate([np.linspace(-12, 12, 100_001), np.geomspace(1e-30, 1, 1000)]).astype(np.float32)
    found, true = operations.tanh(x).astype(np.float64), np.tanh(x.astype(np.float64))
    apart = np.abs(found - true) / np.spacing(np.abs(true).astype(np.float32))
    assert apart.max() < 2  # units in the last place


@pytest.mark.parametrize("name", ["silu", "gelu"])
def test_activations(name: str) -> None:
    random = np.random.default_rng(7)
    near = random.uniform(-20, 20, (20, 1000)).astype(np.float32)
    far = random.uniform(-110, 110, (20, 1000)).astype(np.float32)
    for x in (near, far, any_bits(random, 20, 1000), SPECIAL[None]):
        assert_same_bits(getattr(KERNELS, name)(x), getattr(PAGE, name)(x))


def test_an_activation_is_multiplied_with_up() -> None:
    random = np.random.default_rng(8)
    gate, up = random.standard_normal((2, 9, 101), np.float32)
    expected = operations.silu(gate) * up
    assert_same_bits(KernelArithmetic(members=2).activated(gate, up, "silu"), expected)


def test_the_exponential_function() -> None:
    random = np.random.default_rng(9)
    every = np.arange(0, 2**32, 40_009, dtype=np.uint32).view(np.float32)  # over all bits there are
    halves = (np.arange(-126, 128, dtype=np.float64) + 0.5) * np.log(2)  # the borders of integer parts
    around = (halves[:, None].astype(np.float32).view(np.int32) + np.arange(-8, 9, dtype=np.int32)).view(np.float32)
    for x in (SPECIAL, every, around.reshape(-1), random.uniform(-90, 90, 100_000).astype(np.float32)):
        assert_same_bits(exponential_by_kernel(x), operations.exp(x))
        below = x[~(x > 0)]  # with NaN
        assert_same_bits(exponential_by_kernel(below, "decay"), operations.exp(below))


@pytest.mark.parametrize(("rank", "inputs", "outputs"), [(1, 96, 70), (4, 64, 64), (33, 300, 17), (160, 96, 40)])
def test_adapters(rank: int, inputs: int, outputs: int) -> None:
    random = np.random.default_rng(rank)
    y, x, down, up = (
        random.standard_normal(shape, np.float32)
        for shape in ((5, outputs), (5, inputs), (rank, inputs), (outputs, rank))
    )
    expected = PAGE.low_rank(y, x, down, up, 0.7)
    assert_same_bits(KERNELS.low_rank(y, x, down, up, 0.7), expected)
    assert_same_bits(KernelArithmetic(members=3).low_rank(y, x, down, up, 0.7), expected)

"""Norms, residuals, activations and adapters follow the page to the bit."""

import numpy as np
import pytest

from tests.numerics import operations
from tests.numerics.arithmetic import any_bits, assert_same_bits
from tests.numerics.emulator import Call, run_here
from tests.numerics.exponential import exponential_by_kernel
from tests.numerics.kernels import KernelArithmetic
from tests.numerics.reference import ReferenceArithmetic

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
    halves = (np.arange(-126, 128, dtype=np.float64) + 0.5) * np.log(2)  # where the integer part changes
    around = (halves[:, None].astype(np.float32).view(np.int32) + np.arange(-8, 9, dtype=np.int32)).view(np.float32)
    for x in (SPECIAL, every, around.reshape(-1), random.uniform(-90, 90, 100_000).astype(np.float32)):
        assert_same_bits(exponential_by_kernel(x), operations.exp(x))
        below = x[~(x > 0)]  # and what is not a number
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

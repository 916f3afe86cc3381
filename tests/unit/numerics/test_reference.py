"""The reference in plain Python: its fused multiply-add, and a model's pass."""

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from services.generation.target.adapters import Adapter, read_adapter
from services.generation.target.config.config import read_config
from services.generation.target.config.layer_specs import layer_specs
from services.generation.target.cpu import CpuTarget
from services.generation.target.files.stored_tensor import LAYOUTS
from services.generation.target.program.matrices import side_by_side
from services.generation.target.weights import open_weights
from tests.examples import examples, grid
from tests.fakes.converted_gguf import convert
from tests.fakes.rows import tree_rows
from tests.fakes.tiny_families import FAMILIES, draw_vectors
from tests.fakes.tiny_gguf import make_tiny_gguf, random_rows
from tests.fakes.tiny_head import make_tiny_adapter
from tests.fakes.tiny_model import make_tiny_model
from tests.numerics.arithmetic import assert_same_bits
from tests.numerics.operations import fma
from tests.numerics.reference_model import Computed, ReferenceModel

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


def check_fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    # Few at a time: one sum that is rounded to odd has it done for its whole array.
    found = np.concatenate([fma(a[i : i + 64], b[i : i + 64], c[i : i + 64]) for i in range(0, len(a), 64)])
    expected = [exact(*map(float, each)) for each in zip(a, b, c, strict=True)]
    assert found.dtype == np.float32
    wrong = np.flatnonzero(found.view(np.uint32) != np.array(expected, np.float32).view(np.uint32))
    assert not len(wrong), [(a[i], b[i], c[i], found[i], expected[i]) for i in wrong[:3]]


def finite(bits: np.ndarray) -> np.ndarray:
    """Any bits as float32; infinities and NaN lose a bit of their exponent."""
    bits = bits.astype(np.uint32)
    return np.where(bits & 0x7F800000 == 0x7F800000, bits & ~np.uint32(0x40000000), bits).view(np.float32)


MANY = examples(20_000)


def test_any_numbers() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, (3, MANY))
    check_fma(*finite(bits))


def test_sums_whose_terms_are_near_each_other() -> None:
    """Cancellation, and sums in which one term decides how the other rounds."""
    random = np.random.default_rng(1)
    a, b = finite(random.integers(0x3F000000, 0x40800000, (2, 2 * MANY)))
    product = a.astype(np.float64) * b
    scale = np.exp2(random.integers(-60, 60, len(a)))
    check_fma(a, b, (product * -scale).astype(np.float32))
    near = (-product).astype(np.float32)
    check_fma(a, b, np.nextafter(near, random.choice([-8, 8], len(a)).astype(np.float32)).astype(np.float32))


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
    check_fma(a, b, c)
    check_fma(-a, b, -c)


def test_subnormal_numbers() -> None:
    random = np.random.default_rng(2)
    small = finite(random.integers(0, 0x01000000, (2, MANY)) | random.integers(0, 2, (2, MANY)) << 31)
    ones = finite(random.integers(0x3E000000, 0x40800000, MANY))
    check_fma(small[0], ones, small[1])
    halves = finite(random.integers(0x1F000000, 0x20800000, (2, MANY)))  # products about the least subnormal
    check_fma(halves[0], halves[1], small[1])
    check_fma(halves[0], -halves[1], np.zeros(MANY, np.float32))
    near_one = np.array([[0x3F7FFFFE], [0x3F800001]], np.uint32).view(np.float32)
    odd = np.array([2.0**-127 + 2.0**-149], np.float32)  # and less than half a unit, which float64 does not see
    check_fma(*near_one * np.float32(2.0**-75), odd)


def test_numbers_about_the_largest() -> None:
    random = np.random.default_rng(3)
    a, b = finite(random.integers(0x5F000000, 0x5F800000, (2, MANY)))  # products from 2^126 to 2^128
    c = finite(random.integers(0x7E000000, 0x7F800000, MANY) | random.integers(0, 2, MANY) << 31)
    check_fma(a, b, c)
    check_fma(a, b, -c)
    top = np.array([0x7F7FFFFF] * 3, np.uint32).view(np.float32)
    half = np.float32(2.0**103)  # half a unit of the largest: the tie goes to infinity
    check_fma(top, np.ones(3, np.float32), np.array([half, np.nextafter(half, np.float32(0)), -half], np.float32))


@given(st.tuples(*[st.floats(width=32, allow_nan=False, allow_infinity=False)] * 3))
@settings(max_examples=examples(2000))
def test_numbers_that_hypothesis_picks(numbers: tuple[float, float, float]) -> None:
    check_fma(*(np.array([x], np.float32) for x in numbers))


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


TOKENS = [(7 * i * i + 3 * i) % 384 for i in range(140)]
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
MODELS: dict[str, dict[str, Any]] = {
    "llama, tied": {"tie_word_embeddings": True},
    "llama, biased, heads of 20": {"attention_bias": True, "mlp_bias": True, "head_dim": 20},
    "qwen2, yarn, sliding": {
        "architecture": "qwen2", "use_sliding_window": True, "sliding_window": 70, "max_window_layers": 1,
        "rope_parameters": YARN,
    },
    "qwen3, heads of 24": {"architecture": "qwen3", "head_dim": 24},
    "mistral, sliding, odd sizes": {
        "architecture": "mistral", "hidden": 72, "heads": 6, "kv_heads": 3, "intermediate_size": 101,
        "sliding_window": 40,
    },
} | FAMILIES  # fmt: skip


def target_of(path: Path, adapters: Sequence[Adapter] = (), **options: Any) -> CpuTarget:
    return CpuTarget(read_config(path), open_weights(path), 24, "", "", adapters, **options)


def computed_by(target: CpuTarget, tokens: list[int], adapter: int = -1) -> Computed:
    """In three passes, each a tree without branches."""
    layers = range(target.config.layers + 1)
    table: list[int] = []
    target.blocks.extend(table, len(tokens))
    logits, streams = [], []
    for start, end in pairwise([0, 3, len(tokens) // 3, len(tokens)]):
        output = target.forward(tree_rows(table, start, tokens[start:end], adapter=adapter), layers)
        logits.append(output.logits.copy())
        streams.append(output.features.reshape(end - start, len(layers), -1).swapaxes(0, 1))
    target.blocks.release(table)
    return Computed(np.concatenate(logits), np.concatenate(streams, axis=1))


def check(path: Path, tokens: list[int] = TOKENS, **options: Any) -> None:
    found = computed_by(target_of(path, **options), tokens)
    reference = ReferenceModel(read_config(path), open_weights(path), **options)
    expected = reference.forward(tokens)
    for one, other in zip(found.streams, expected.streams, strict=True):
        assert_same_bits(one, other)
    assert_same_bits(found.logits, expected.logits)
    assert np.isfinite(expected.logits).all()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in FAMILIES and "," in name else ()) for name in MODELS]
)
def test_architectures(tmp_path: Path, name: str) -> None:
    """The first in three blocks of the cache, the others in two, and past their windows."""
    draw_vectors(make_tiny_model(tmp_path, **MODELS[name]))
    check(tmp_path, TOKENS if name == next(iter(MODELS)) else TOKENS[:72])


@pytest.mark.parametrize("cache_dtype", ["bfloat16", "int8"])
def test_other_forms_of_the_cache(tmp_path: Path, cache_dtype: str) -> None:
    check(make_tiny_model(tmp_path), TOKENS[:72], cache_dtype=cache_dtype)


@pytest.mark.parametrize(("family", "cache_dtype"), [("qwen3_5", "int8"), ("granite_hybrid", "bfloat16")])
def test_states_in_other_forms(family: str, cache_dtype: str, tmp_path: Path) -> None:
    """Compares the states' inputs, not the states themselves."""
    check(draw_vectors(make_tiny_model(tmp_path, **FAMILIES[family])), TOKENS[:70], cache_dtype=cache_dtype)


@pytest.mark.parametrize("storage", [name for name in LAYOUTS if name not in ("float32", "mxfp4")])
def test_gguf_files(tmp_path: Path, storage: str) -> None:
    architecture = "qwen3" if storage in ("q4_k", "bfloat16") else "llama"
    path = make_tiny_gguf(tmp_path / "tiny.gguf", architecture=architecture, storage=storage, tied=storage == "q6_k")
    check(path, TOKENS[:12])


@pytest.mark.parametrize("storage", ["q8_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "q5_k", "q6_k"])
def test_int8(tmp_path: Path, storage: str) -> None:
    check(
        make_tiny_gguf(tmp_path / "tiny.gguf", storage=storage, tied=storage == "q6_k"), TOKENS[:40], arithmetic="int8"
    )


def test_matrices_of_a_layer_in_different_storages(tmp_path: Path) -> None:
    """As published files mix them; matrices that cannot be packed together are computed apart or widened."""
    other: dict[str, Any] = {}
    make_tiny_gguf(tmp_path / "other.gguf", storage="q6_k", seed=1, change_tensors=other.update)
    names = [f"blk.0.{name}.weight" for name in ("attn_v", "ffn_up", "ffn_down")]
    path = make_tiny_gguf(
        tmp_path / "mixed.gguf",
        storage="q4_k",
        change_tensors=lambda t: t.update({name: other[name] for name in names}),
    )
    assert {open_weights(path).storage(f"model.layers.0.self_attn.{m}_proj.weight") for m in "qkv"} == {"q4_k", "q6_k"}
    check(path, TOKENS[:12])


def test_adapters(tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path / "base", architecture="mistral", hidden=72, heads=6, kv_heads=3)
    config = read_config(base)
    adapters = [
        read_adapter(name, make_tiny_adapter(tmp_path / name, base, seed=seed, **options), config, base, "")
        for seed, (name, options) in enumerate(
            {
                "all": {}, "some": {"modules": ("q_proj", "up_proj"), "rank": 7, "layers": [1], "use_rslora": True},
                "wide": {"rank": 40},
            }.items()
        )
    ]  # fmt: skip
    target, tokens = target_of(base, adapters), TOKENS[:24]
    for number, adapter in enumerate([*adapters, None]):
        expected = ReferenceModel(config, open_weights(base), adapter).forward(tokens)
        found = computed_by(target, tokens, number if adapter else -1)
        assert_same_bits(found.logits, expected.logits)
        for one, other in zip(found.streams, expected.streams, strict=True):
            assert_same_bits(one, other)


_WHOLE_BLOCKS = {"hidden": 64, "heads": 4, "kv_heads": 2, "intermediate_size": 128, "tie_word_embeddings": False}


@pytest.mark.parametrize(
    ("architecture", "arithmetic"),
    grid(2, ["phi3", "gemma2", "mixtral", "lfm2", "qwen3_5_moe", "granite_hybrid, experts"], ["float32", "int8"]),
)
def test_quantised_files_of_other_families(tmp_path: Path, architecture: str, arithmetic: str) -> None:
    """Fused modules, norms around one and tensors of all experts, in blocks."""
    directory = draw_vectors(make_tiny_model(tmp_path / "d", **(FAMILIES[architecture] | _WHOLE_BLOCKS)))
    path = convert(directory, tmp_path / "m.gguf", GGMLQuantizationType.Q8_0)
    weights = open_weights(path)
    matrices = {weights.storage(name) for name in weights.names() if len(weights.shape(name)) == 2}
    assert "q8_0" in matrices
    check(path, TOKENS[:40], arithmetic=arithmetic)


def test_a_state_in_several_storages(tmp_path: Path) -> None:
    """As files of Q4_K_M have it: each becomes a matrix of its own, and int8 takes them. Blocks hold several heads."""
    members = FAMILIES["qwen3_5"] | {"hidden": 256, "head_dim": 64, "linear_value_head_dim": 64}
    directory = draw_vectors(make_tiny_model(tmp_path / "d", **members))
    storages = {"attn_qkv": "q6_k", "attn_gate": "q8_0", "ssm_out": "q4_k"}

    def stored(tensors: dict[str, Any]) -> None:
        for name, (_, values) in tensors.items():
            if storage := storages.get(name.split(".")[-2]):
                rows = random_rows(storage, *values.shape, np.random.default_rng(0))
                tensors[name] = (int(LAYOUTS[storage].ggml), rows)

    path = convert(directory, tmp_path / "m.gguf", change_tensors=stored)
    config, weights = read_config(path), open_weights(path)
    layer = next(spec for spec in layer_specs(config) if spec.rule)
    matrices = side_by_side(layer.qkv, layer.prefix, weights.tensor)
    assert [matrix.weights.storage.name for matrix in matrices] == ["q6_k", "q8_0", "float32"]
    for arithmetic in ("float32", "int8"):
        check(path, TOKENS[:20], arithmetic=arithmetic)


def test_adapters_of_fused_modules(tmp_path: Path) -> None:
    members = {"architecture": "phi3", "hidden": 72, "heads": 6, "kv_heads": 3, "intermediate_size": 101}
    base, modules = make_tiny_model(tmp_path / "base", **members), ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
    config = read_config(base)
    adapter = read_adapter("a", make_tiny_adapter(tmp_path / "a", base, modules=modules), config, base, "")
    expected = ReferenceModel(config, open_weights(base), adapter).forward(TOKENS[:60])
    assert_same_bits(computed_by(target_of(base, [adapter]), TOKENS[:60], 0).logits, expected.logits)


def test_a_layer_by_itself_is_that_of_the_whole(tmp_path: Path) -> None:
    path = make_tiny_model(tmp_path)
    reference = ReferenceModel(read_config(path), open_weights(path))
    streams = reference.forward(TOKENS[:5]).streams
    for number, spec in enumerate(layer_specs(read_config(path))):
        assert_same_bits(reference.layer(number, spec, streams[number], {}), streams[number + 1])

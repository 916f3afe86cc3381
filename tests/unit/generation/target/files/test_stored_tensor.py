"""Values of stored weights against exact arithmetic on the bits of GGUF's blocks, read the way ggml-quants.c does."""

import json
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from services.generation.target.arrays import Bytes
from services.generation.target.config.config import read_config
from services.generation.target.errors import TargetError, WeightsInvalid
from services.generation.target.files.safetensors import SafetensorsFiles
from services.generation.target.files.stored_tensor import LAYOUTS, BlockLayout, StoredTensor
from services.generation.target.weights import checked_weights
from tests.examples import examples
from tests.fakes.tiny_model import make_tiny_model
from tests.numerics.vectors import random_rows

EXTREMES = (0.0, -0.0, 2.0**-24, -(2.0**-24), 2.0**-14, 1.0, -1.0, 1 / 3, 65504.0, -65504.0)
"""Float16 scales: zeros, the smallest subnormal and normal, and the largest."""

PLAIN = ("float32", "bfloat16", "float16")
QUANTISED = tuple(name for name in LAYOUTS if LAYOUTS[name].halves)

Term = tuple[tuple[Fraction, ...], tuple[Fraction, ...]]
"""A weight as the factors of two products: the first less the second."""


def half(block: bytes, at: int) -> Fraction:
    return Fraction(float(np.frombuffer(block[at : at + 2], "<f2")[0]))


def nibbles(block: bytes) -> list[int]:
    """Values of blocks of 32: the low halves of 16 bytes, then the high ones."""
    return [byte & 15 for byte in block[-16:]] + [byte >> 4 for byte in block[-16:]]


def q8_0(block: bytes) -> Iterator[Term]:
    d = half(block, 0)
    return (((d, Fraction(q)), ()) for q in np.frombuffer(block[2:], np.int8).tolist())


def q4_0(block: bytes) -> Iterator[Term]:
    d = half(block, 0)
    return (((d, Fraction(q - 8)), ()) for q in nibbles(block))


def q4_1(block: bytes) -> Iterator[Term]:
    d, m = half(block, 0), half(block, 2)
    return (((d, Fraction(q)), (-m,)) for q in nibbles(block))


def five_bits(block: bytes) -> list[int]:
    """The k-th bit of four bytes is the upper bit of the k-th nibble."""
    bits = int.from_bytes(block[-20:-16], "little")
    return [low + 16 * (bits >> k & 1) for k, low in enumerate(nibbles(block))]


def q5_0(block: bytes) -> Iterator[Term]:
    d = half(block, 0)
    return (((d, Fraction(q - 16)), ()) for q in five_bits(block))


def q5_1(block: bytes) -> Iterator[Term]:
    d, m = half(block, 0), half(block, 2)
    return (((d, Fraction(q)), (-m,)) for q in five_bits(block))


def iq4_nl(block: bytes) -> Iterator[Term]:
    d = half(block, 0)
    numbers = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # kvalues_iq4nl of ggml
    return (((d, Fraction(numbers[q])), ()) for q in nibbles(block))


def scale_and_minimum(packed: bytes, j: int) -> tuple[int, int]:
    """get_scale_min_k4 of ggml-quants.c."""
    if j < 4:
        return packed[j] & 63, packed[j + 4] & 63
    return (packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4), (packed[j + 4] >> 4) | (packed[j] >> 6 << 4)


def q4_or_5_k(block: bytes, high: bytes, low: bytes) -> Iterator[Term]:
    d, dmin = half(block, 0), half(block, 2)
    for part in range(8):
        scale, minimum = scale_and_minimum(block[4:16], part)
        for i in range(32):
            q = low[part // 2 * 32 + i] >> (part % 2 * 4) & 15
            q += (high[i] >> part & 1) * 16 if high else 0
            yield (d, Fraction(scale), Fraction(q)), (dmin, Fraction(minimum))


def q4_k(block: bytes) -> Iterator[Term]:
    return q4_or_5_k(block, b"", block[16:])


def q5_k(block: bytes) -> Iterator[Term]:
    return q4_or_5_k(block, block[16:48], block[48:])


def q6_k(block: bytes) -> Iterator[Term]:
    low, high, scales, d = block[:128], block[128:192], np.frombuffer(block[192:208], np.int8), half(block, 208)
    for k in range(256):
        part, i = divmod(k, 128)
        row, at = divmod(i, 32)
        q = low[part * 64 + row % 2 * 32 + at] >> (row // 2 * 4) & 15
        q |= (high[part * 32 + at] >> (row * 2) & 3) << 4
        yield (d, Fraction(int(scales[k // 16])), Fraction(q - 32)), ()


READERS: dict[str, Callable[[bytes], Iterator[Term]]] = {
    "q8_0": q8_0, "q4_0": q4_0, "q4_1": q4_1, "q5_0": q5_0, "q5_1": q5_1, "iq4_nl": iq4_nl,
    "q4_k": q4_k, "q5_k": q5_k, "q6_k": q6_k,
}  # fmt: skip


def rounded(exact: Fraction) -> Fraction:
    """To float32, ties to even; subnormals do not occur."""
    if not exact:
        return exact
    exponent = abs(exact).numerator.bit_length() - abs(exact).denominator.bit_length() - 24
    while abs(exact) >= Fraction(2) ** (exponent + 24):
        exponent += 1
    return round(exact / Fraction(2) ** exponent) * Fraction(2) ** exponent


def product(factors: tuple[Fraction, ...]) -> Fraction:
    found = Fraction(1 if factors else 0)
    for factor in factors:
        found *= factor
        assert rounded(found) == found, "a product that float32 does not hold"
    return found


def extreme_blocks(layout: BlockLayout, random: np.random.Generator) -> Bytes:
    """Pairs of extreme scales, with integers that are all low, all high or random."""
    scales = [*zip(EXTREMES, EXTREMES[::-1], strict=True), *zip(EXTREMES, EXTREMES[3:] + EXTREMES[:3], strict=True)]
    rows = []
    for pair in scales:
        for fill in (0, 255, None):
            block = random.integers(0, 256, layout.size, np.uint8) if fill is None else np.full(layout.size, fill, "u1")
            written = np.array(pair, "<f2").view(np.uint8)[: layout.halves]
            block[layout.halves_at : layout.halves_at + layout.halves] = written
            rows.append(block)
    return np.array(rows, np.uint8)


@pytest.mark.slow
@pytest.mark.parametrize("storage", QUANTISED)
def test_products_are_exact_and_a_sum_rounds_once(storage: str) -> None:
    layout, random = LAYOUTS[storage], np.random.default_rng(1)
    ordinary = random_rows(storage, 8, layout.weights, random)
    data = np.concatenate([extreme_blocks(layout, random), ordinary])
    values = StoredTensor("w", storage, (len(data), layout.weights), data).values()
    assert values.dtype == np.float32
    for row, block in zip(values.tolist(), data, strict=True):
        expected = [
            float(rounded(product(first) - product(second))) for first, second in READERS[storage](block.tobytes())
        ]
        assert row == expected


@pytest.mark.parametrize("storage", PLAIN)
def test_plain_numbers_are_themselves(storage: str) -> None:
    numbers = np.array([[0.0, -0.0, 1.0, -2.5], [2.0**-14, 65504.0, 2.0**-24, 0.5]], np.float32)
    data = {
        "float32": numbers.view(np.uint8),
        "float16": numbers.astype("<f2").view(np.uint8),
        "bfloat16": (numbers.view(np.uint32) >> 16).astype("<u2").view(np.uint8),
    }[storage]
    tensor = StoredTensor.of_bytes("w", storage, (2, 4), data.reshape(-1))
    expected = numbers if storage != "bfloat16" else (numbers.view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert tensor.values().tobytes() == expected.tobytes()
    assert tensor.rows(np.array([1, 0, 1])).tobytes() == expected[[1, 0, 1]].tobytes()


@pytest.mark.parametrize("storage", LAYOUTS)
def test_rows_are_those_of_all_values(storage: str) -> None:
    layout = LAYOUTS[storage]
    data = random_rows(storage, 5, 2 * layout.weights, np.random.default_rng(2))
    tensor = StoredTensor("w", storage, (5, 2 * layout.weights), data)
    assert tensor.values().shape == (5, 2 * layout.weights)
    assert tensor.rows(slice(1, 4)).tobytes() == tensor.values()[1:4].tobytes()
    assert tensor.rows(slice(1, 4)).flags.writeable


def test_mxfp4_is_a_float_of_four_bits_times_a_power_of_two() -> None:
    """OCP Microscaling Formats 1.0, sections 5.3.3 and 5.4.1: every value with every exponent."""
    nibbles = np.concatenate([np.arange(16), np.arange(16)]).astype(np.uint8)
    packed = nibbles[:16] | nibbles[16:] << 4
    blocks = np.stack([np.concatenate([[np.uint8(e)], packed]) for e in range(253)])
    found = StoredTensor("w", "mxfp4", (253, 32), blocks).values()
    sizes = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
    for exponent, row in enumerate(found.tolist()):
        expected = [(-1 if n & 8 else 1) * sizes[n & 7] * 2.0 ** (exponent - 127) for n in nibbles]
        assert row == expected


@pytest.mark.parametrize("exponent", [252, 253, 254, 255])
def test_exponents_of_infinite_weights_are_found(exponent: int) -> None:
    data = random_rows("mxfp4", 3, 128, np.random.default_rng(3))
    data[1, 17 * 2] = exponent
    tensor = StoredTensor("model.norm.weight", "mxfp4", (3, 128), data)
    if exponent == 252:
        tensor.check_finite()
    else:
        with pytest.raises(WeightsInvalid, match=r"model\.norm\.weight"):
            tensor.check_finite()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("storage", [*PLAIN, *QUANTISED])
def test_what_is_not_finite_is_found_wherever_it_stands(storage: str, bad: float) -> None:
    layout = LAYOUTS[storage]
    columns = 4 * layout.weights
    data = random_rows(storage, 3, columns, np.random.default_rng(3))
    StoredTensor("model.norm.weight", storage, (3, columns), data).check_finite()
    written = np.array([bad], "<f2" if layout.halves or storage == "float16" else "<f4").view(np.uint8)
    written = written[2:] if storage == "bfloat16" else written
    for at in range(layout.halves_at, layout.halves_at + max(layout.halves, 1), 2):
        for block in (0, 5, 11):
            damaged = data.copy().reshape(-1, layout.size)
            damaged[block, at : at + len(written)] = written
            tensor = StoredTensor("model.norm.weight", storage, (3, columns), damaged.reshape(data.shape))
            with pytest.raises(WeightsInvalid, match=r"model\.norm\.weight"):
                tensor.check_finite()


def test_integers_of_blocks_are_not_taken_for_numbers() -> None:
    data = np.full((1, 34), 255, np.uint8)
    data[0, :2] = np.array([1.0], "<f2").view(np.uint8)
    StoredTensor("w", "q8_0", (1, 32), data).check_finite()


def test_rounding_keeps_values_to_half_a_step_of_their_block_and_leaves_what_it_cannot_hold() -> None:
    values = np.random.default_rng(7).standard_normal((5, 96)).astype(np.float32)
    rounded = StoredTensor.of_values("w", values).rounded()
    assert rounded.storage == "q4_1"
    steps = np.ptp(values.reshape(5, 3, 32), axis=-1, keepdims=True) / 15
    errors = np.abs(rounded.values() - values).reshape(5, 3, 32)
    assert (errors <= steps * 0.52).all()  # half a step, and the rounding of scale and minimum to float16
    values[3, 40] = 3e38
    for kept in (values, values[:, :48], values[0]):
        tensor = StoredTensor.of_values("w", np.ascontiguousarray(kept))
        assert tensor.rounded() is tensor


NORM = "model.norm.weight"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "model", layers=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tensors_are_the_bits_that_torch_reads(model: Path, dtype: torch.dtype) -> None:
    path = model / "model.safetensors"
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(path).items()}
    save_file(tensors, path)
    config = read_config(model)
    weights = checked_weights(model, config)
    assert weights.names() == tensors.keys()
    for name, expected in tensors.items():
        tensor = weights.tensor(name)
        assert f"torch.{tensor.storage}" == str(dtype)
        assert tensor.shape == weights.shape(name) == tuple(expected.shape)
        assert tensor.values().tobytes() == expected.float().numpy().tobytes()
        assert not tensor.data.flags.owndata


def test_a_tensor_may_lie_anywhere(tmp_path: Path) -> None:
    """Headers are padded to eight bytes, but no rule aligns a tensor after one of odd length."""
    values = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    header = {
        "odd": {"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]},
        NORM: {"dtype": "F32", "shape": [2, 3], "data_offsets": [1, 25]},
    }
    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + b"\0" + values.numpy().tobytes()
    (tmp_path / "model.safetensors").write_bytes(data)
    weights = SafetensorsFiles.open(tmp_path)
    assert weights.tensor(NORM).values().tolist() == values.tolist()
    weights.tensor(NORM).check_finite()
    with pytest.raises(WeightsInvalid):
        weights.storage("odd")


def test_a_file_truncated_anywhere_is_refused(model: Path) -> None:
    path = model / "model.safetensors"
    whole = path.read_bytes()
    for end in (*range(0, 4000, 61), *range(4000, len(whole), 20011), len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(WeightsInvalid, match=r"model\.safetensors"):
            SafetensorsFiles.open(model)


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bytes_never_do_more_than_be_refused(model: Path, data: st.DataObject) -> None:
    path, config = model / "model.safetensors", read_config(model)
    whole = path.read_bytes()
    damaged = bytearray(whole)
    for at in data.draw(st.lists(st.integers(0, 2000), min_size=1, max_size=4)):
        damaged[at] = data.draw(st.integers(0, 255) | st.sampled_from(list(b'0129[]{}",:-')))
    path.write_bytes(damaged)
    try:
        weights = checked_weights(model, config)
        for name in weights.names() - {"model.rotary_emb.inv_freq"}:
            assert weights.tensor(name).values().shape == weights.shape(name)
    except TargetError as error:
        assert str(model) in str(error)  # noqa: PT017
    finally:
        path.write_bytes(whole)

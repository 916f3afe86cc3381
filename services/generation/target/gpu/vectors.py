"""The vectors of `docs/numerics.md` that a device computes before it serves, and operations on numbers of any bits.

`vectors.json` has some cases of `tests/vectors/numerics`, which `tests.vectors.make_device` chooses; tests compute all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.target.arrays import Float32, UInt32
from services.generation.target.blocks import BLOCK
from services.generation.target.config.rope import query_scales, rotations
from services.generation.target.files.stored_tensor import StoredTensor
from services.generation.target.gpu.device import DeviceUnavailable
from services.generation.target.gpu.kernels import HeadShape, Kernels, LayerCache, Lines, RotationTables, RoundedLines
from services.generation.target.kernels.storages import GROUP, PANEL, packed_as, padded
from services.generation.target.program.matrices import matrix_of
from services.generation.target.rows import Part, Rows

Case = Mapping[str, Any]
Outcome = dict[str, Float32]

_FILE = Path(__file__).with_name("vectors.json")
_OPERANDS = 1 << 15
OPERATIONS = ("quotient", "root", "product", "sum", "fused", "difference", "rest")


def check_arithmetic(kernels: Kernels, storages: Collection[str]) -> None:
    """Compute operations and vectors, of linear layers those with compiled `storages`. Raises DeviceUnavailable, which
    names the first number that differs.
    """
    for name, found, expected in (*_operations(kernels), _best(kernels), _stored(kernels)):
        _compare(kernels, name, found, expected)
    for section, cases in json.loads(_FILE.read_bytes()).items():
        for case in cases:
            if "weights" in case and packed_as(case["weights"]["storage"]).name not in storages:
                continue
            for name, found in compute(kernels, section, case).items():
                _compare(kernels, f"{section}, {name}", found, values_of(case["expected"][name]))


def _compare(kernels: Kernels, name: str, found: Float32, expected: Float32) -> None:
    differs = (_bits(found) != _bits(expected)) & ~(np.isnan(found) & np.isnan(expected))
    if differs.any():
        at = tuple(int(i) for i in np.argwhere(differs)[0])
        raise DeviceUnavailable(
            f"{kernels.device.description} computes other bits than docs/numerics.md: {name}: {int(differs.sum())} of "
            f"{differs.size} differ, first {list(at)}: {_bits(found)[at]:08x}, expected {_bits(expected)[at]:08x}; "
            "its compiler contracts, reorders or flushes subnormal numbers: use another driver, or --device cpu"
        )


def _bits(values: Float32) -> UInt32:
    return np.ascontiguousarray(values).view(np.uint32)


def values_of(written: Mapping[str, Any]) -> Float32:
    """An array as the vectors have it: its shape, and eight hexadecimal digits for each number."""
    flat = np.frombuffer(bytes.fromhex(written["float32"]), ">f4").astype(np.float32)
    return flat.reshape(written["shape"])


def _operations(kernels: Kernels) -> Iterator[tuple[str, Float32, Float32]]:
    """Operations on numbers of all magnitudes, and on some whose products are subnormal or near it."""
    random = np.random.default_rng(0)
    a, b, c, d = random.integers(0, 1 << 32, (4, _OPERANDS), np.uint32)
    half = _OPERANDS // 2
    for each in (a, b, c, d):  # exponents from 2^-76 to 2^-50: products near the least normal number
        each[:half] = each[:half] & 0x80FFFFFF | random.integers(51, 78, half, np.uint32) << 23
    operands = [each.view(np.float32) for each in (a, b, c, d)]
    buffers = [kernels.upload(each) for each in operands]
    outputs = [kernels.lines(1, _OPERANDS) for _ in OPERATIONS]
    kernels.operations(buffers, outputs, _OPERANDS)
    for name, output, expected in zip(OPERATIONS, outputs, _expected(*operands), strict=True):
        yield name, _read(kernels, output, 1, _OPERANDS)[0], expected


def _best(kernels: Kernels) -> tuple[str, Float32, Float32]:
    """The lowest place of the largest number, and the largest two; half of the rows have the largest several times."""
    random = np.random.default_rng(0)
    rows = random.standard_normal((8, _OPERANDS // 8), dtype=np.float32)
    rows[::2] = np.minimum(rows[::2], 2)
    found = kernels.best(Lines(kernels.upload(rows), rows.shape[1]), *rows.shape)
    expected = np.column_stack([rows.argmax(axis=1), np.sort(rows)[:, :-3:-1]])
    return "best", np.array([each or (-1.0, 0.0, 0.0) for each in found], np.float32), expected.astype(np.float32)


def _stored(kernels: Kernels) -> tuple[str, Float32, Float32]:
    """Numbers of any bits as a cache of bfloat16 has them: rounded, ties to even; NaN stays NaN."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, (BLOCK, _OPERANDS // BLOCK), np.uint32)
    bits[0] |= 0x7FFFFFFF  # an NVIDIA GPU's own NaN, and its negative
    rows, size = bits.shape
    cache = LayerCache(kernels, "bfloat16", HeadShape(0, 1, size // 2), 1, None)
    cache.store(_lines(kernels, bits.view(np.float32)), _pass(kernels, np.arange(rows), 0), rows)
    found = np.concatenate(_cached(cache, "bfloat16", rows, 1, size // 2), axis=2).reshape(rows, size)
    rounded = bits + (bits >> 16 & 1) + np.uint32(0x7FFF) >> 16 << 16
    return "bfloat16", found, np.where(np.isnan(bits.view(np.float32)), np.float32(np.nan), rounded.view(np.float32))


@np.errstate(all="ignore")
def _expected(a: Float32, b: Float32, c: Float32, d: Float32) -> tuple[Float32, ...]:
    product = a.astype(np.float64) * b.astype(np.float64)  # exact
    total = product + c.astype(np.float64)
    rest = total - product
    error = (product - (total - rest)) + (c.astype(np.float64) - rest)
    # Rounded to odd in float64, then to float32: rounded once (Boldo and Melquiond 2008).
    even = (total.view(np.int64) & 1 == 0) & (error != 0) & np.isfinite(total)
    odd = np.where(even, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total)
    return a / b, np.sqrt(a), a * b, a + b, odd.astype(np.float32), a * b - c * d, (a + b) - a


def compute(kernels: Kernels, section: str, case: Case, turns: int = 1) -> Outcome:
    """The results of a case by their names, its rows repeated `turns` times."""
    return _SECTIONS[section](kernels, case, turns)


def _repeated(case: Case, name: str, turns: int) -> Float32:
    return np.concatenate([values_of(case[name])] * turns)


def _lines(kernels: Kernels, values: Float32, multiple: int = PANEL) -> Lines:
    rows, size = values.shape
    whole = np.zeros((rows, padded(size, multiple)), np.float32)
    whole[:, :size] = values
    return Lines(kernels.upload(whole), whole.shape[1])


def _read(kernels: Kernels, lines: Lines, rows: int, size: int) -> Float32:
    found = np.empty((rows, lines.width), np.float32)
    kernels.device.read(lines.buffer, found)
    return found[:, :size]


def _elementary(kernels: Kernels, case: Case, turns: int) -> Outcome:
    x = np.concatenate([values_of(case["x"])[None]] * turns)
    rows, size = x.shape
    capped = _lines(kernels, x)
    kernels.cap(capped, rows, size, case["cap"])
    both = np.ones((rows, padded(size, PANEL) // PANEL, 2, PANEL), np.float32)
    both[:, :, 0] = np.pad(x, ((0, 0), (0, -size % PANEL))).reshape(rows, -1, PANEL)
    gate_up, found = _lines(kernels, both.reshape(rows, -1)), {"capped": _read(kernels, capped, rows, size)}
    for activation in ("silu", "gelu"):
        y = kernels.lines(rows, padded(size, PANEL))
        kernels.gate(gate_up, y, rows, size, activation)
        found[activation] = _read(kernels, y, rows, size)
    return found


def _norm(kernels: Kernels, case: Case, turns: int) -> Outcome:
    v = _repeated(case, "v", turns)
    rows, size = v.shape
    x, y = _lines(kernels, v), kernels.lines(rows, padded(size, PANEL))
    kernels.norm(x, kernels.upload(values_of(case["weight"])), y, rows, size, case["epsilon"])
    return {"y": _read(kernels, y, rows, size)}


def _linear(kernels: Kernels, case: Case, turns: int) -> Outcome:
    return {"y": _product(kernels, case, turns, is_int8=False)}


def _linear_int8(kernels: Kernels, case: Case, turns: int) -> Outcome:
    return {"y": _product(kernels, case, turns, is_int8=True)}


def _product(kernels: Kernels, case: Case, turns: int, *, is_int8: bool) -> Float32:
    written, x = case["weights"], _repeated(case, "x", turns)
    data = np.frombuffer(bytes.fromhex(written["bytes"]), np.uint8)
    tensor = StoredTensor.of_bytes("weights", written["storage"], tuple(written["shape"]), data)
    bias = values_of(case["bias"]) if "bias" in case else None
    matrix, lines = kernels.matrix(matrix_of(tensor, bias=bias)), _lines(kernels, x, GROUP)
    y = kernels.lines(len(x), matrix.columns)
    rounded = kernels.rounded_lines(len(x), lines.width)
    if is_int8:
        kernels.round(lines, rounded, len(x), matrix.groups)
    kernels.linear(matrix, rounded if is_int8 else lines, y, len(x))
    return _read(kernels, y, len(x), tensor.shape[0])


def _pass(kernels: Kernels, positions: NDArray[Any], first_slot: int) -> Any:
    """A described pass of rows at these positions of one sequence, stored from `first_slot` on; a row sees all of its
    sequence up to its position.
    """
    count, most = len(positions), int(positions.max()) // BLOCK + 1
    parts: list[Any] = [[]] * len(Part)
    parts[Part.POSITIONS], parts[Part.LENGTHS], parts[Part.CONTIGUOUS] = positions, positions + 1, positions + 1
    parts[Part.SLOTS] = np.arange(first_slot, first_slot + count)
    parts[Part.SEQUENCES], parts[Part.BRANCH_STARTS] = [0] * count, [0] * (count + 1)
    parts[Part.TABLES] = np.arange(most)
    numbers = np.concatenate([np.asarray(part, np.int32) for part in parts])
    rows = Rows(np.zeros(count, np.int64), numbers, tuple(accumulate(map(len, parts))), 1)
    return kernels.upload(kernels.described(rows))


def _rotation(kernels: Kernels, case: Case, turns: int) -> Outcome:
    queries, keys, values = (_repeated(case, name, turns) for name in ("queries", "keys", "values"))
    (rows, heads, dim), kv_heads = queries.shape, keys.shape[1]
    positions, form = np.array(case["positions"] * turns), case["cache_dtype"]
    cosines, sines = rotations(
        values_of(case["frequencies"]).tolist(), case["attention_factor"], int(positions.max()) + 1
    )
    scales = query_scales(dim**-0.5, None, len(cosines))
    upload = kernels.upload
    tables = RotationTables(upload(cosines), upload(sines), upload(scales), cosines.shape[1])
    qkv = _lines(kernels, np.concatenate([part.reshape(rows, -1) for part in (queries, keys, values)], axis=1))
    at = 0
    for name, count in (("query_norm", heads), ("key_norm", kv_heads)):
        if name in case:
            weight = kernels.upload(values_of(case[name]))
            kernels.norm(qkv, weight, qkv, rows, dim, case["epsilon"], at=at, heads=count)
        at += count * dim
    in_bytes = kernels.rounded_heads(rows, heads, dim) if form == "int8" else None
    cache = LayerCache(kernels, form, HeadShape(heads, kv_heads, dim), -(-rows // BLOCK), in_bytes)
    described = _pass(kernels, positions, 0)
    cache.rotate(qkv, tables, described, rows)
    cache.store(qkv, described, rows)
    turned = _read(kernels, qkv, rows, heads * dim).reshape(rows, heads, dim)
    if in_bytes:
        turned = _widened(kernels, in_bytes, rows, heads, dim)
    return dict(zip(("queries", "keys", "values"), (turned, *_cached(cache, form, rows, kv_heads, dim)), strict=True))


def _widened(kernels: Kernels, lines: RoundedLines, rows: int, heads: int, dim: int) -> Float32:
    whole, scales = np.empty((rows, heads, dim), np.int8), np.empty((rows, heads, 1), np.float32)
    kernels.device.read(lines.bytes, whole)
    kernels.device.read(lines.scales, scales)
    return whole.astype(np.float32) * scales


def _cached(cache: LayerCache, form: str, rows: int, heads: int, dim: int) -> list[Float32]:
    """Keys and values of the first slots, widened."""
    parts = [np.concatenate(each) for each in zip(*map(cache.block, range(-(-rows // BLOCK))), strict=True)]
    kind = {"float32": np.float32, "bfloat16": np.uint16, "int8": np.int8}[form]
    found = [part.view(kind).reshape(-1, heads, dim)[:rows] for part in parts[:2]]
    if form == "bfloat16":
        return [(each.astype(np.uint32) << 16).view(np.float32) for each in found]
    if form == "int8":
        scales = [part.view(np.float32).reshape(-1, heads, 1)[:rows] for part in parts[2:]]
        return [each.astype(np.float32) * scale for each, scale in zip(found, scales, strict=True)]
    return [each.astype(np.float32) for each in found]


def _attention(kernels: Kernels, case: Case, turns: int) -> Outcome:
    queries, keys, values = _repeated(case, "queries", turns), values_of(case["keys"]), values_of(case["values"])
    (rows, heads, dim), (length, kv_heads, _) = queries.shape, keys.shape
    positions, form = np.array(case["positions"] * turns), case["cache_dtype"]
    sinks = kernels.upload(values_of(case["sinks"])) if "sinks" in case else None
    most = max(rows, length)
    whole = np.zeros((most, heads + 2 * kv_heads, dim), np.float32)
    whole[:length, heads : heads + kv_heads], whole[:length, heads + kv_heads :] = keys, values
    qkv = _lines(kernels, whole.reshape(most, -1))
    whole[:rows, :heads] = queries
    asked = _lines(kernels, whole[:rows].reshape(rows, -1))
    in_bytes = kernels.rounded_heads(most, heads, dim) if form == "int8" else None
    blocks = -(-most // BLOCK) + -(-rows // BLOCK)
    mixed, found = kernels.lines(rows, padded(heads * dim, PANEL)), {}
    stored, seeing = _pass(kernels, np.arange(length), 0), _pass(kernels, positions, BLOCK * -(-most // BLOCK))
    for window in case["windows"]:
        shape = HeadShape(heads, kv_heads, dim, window, case.get("chunk", 0), case.get("cap", 0.0))
        cache = LayerCache(kernels, form, shape, blocks, in_bytes)
        cache.store(qkv, stored, length)
        cache.store(asked, seeing, rows)  # queries; keys and values go to slots that no row sees
        cache.attend(asked, mixed, seeing, rows, sinks)
        found[f"window {window}"] = _read(kernels, mixed, rows, heads * dim).reshape(rows, heads, dim)
    return found


_SECTIONS: Mapping[str, Callable[[Kernels, Case, int], Outcome]] = {
    "elementary": _elementary,
    "norm": _norm,
    "linear": _linear,
    "linear_int8": _linear_int8,
    "rotation": _rotation,
    "attention": _attention,
}

"""Rows of x rounded to signed bytes, 32 inputs with one scale: `docs/numerics.md`, Linear with int8."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from services.generation.target.canonical.kernels.code import F32, I8, I32, Code, Value
from services.generation.target.canonical.kernels.linear.quantised import MIDDLE, byte_order
from services.generation.target.canonical.kernels.storages import GROUP, Storage

ROUNDED = 64  # bytes of a row's rounded group
SCALE, SCALED_SUM, STARTS = 32, 36, (40, 44)
"""Where a rounded group has, after its bytes: d and d * sum of the bytes, float32; for each half of its inputs what
the sum of products begins with, int32, where integers of weights have a middle. Weights with one scale for all of the
group begin with the first of the two, which then stands for all inputs."""

_ROUND = 12582912.0  # 1.5 * 2^23: a float32 of this size has no fraction
_ROUND_BITS = 0x4B400000
_SMALLEST = 2.0**-64


def round_rows(c: Code, record: Any, storage: Storage, x: Value, rows: Value, to: Value) -> None:
    """x as [group][row][ROUNDED bytes], the bytes in the order of `QuantisedGroup.words`."""
    with c.loop(rows) as row:
        line = c.at(x, c.mul(row, record.x_stride))
        with c.loop(record.groups) as group:
            place = c.at(to, c.mul(c.add(c.mul(group, rows), row), ROUNDED))
            _round_group(c, storage, c.at(line, c.mul(group, 4 * GROUP)), place)


def _round_group(c: Code, storage: Storage, x: Value, place: Value) -> None:
    b, wide = c.b, ir.VectorType(I32, GROUP)
    values = c.load(x, 0, F32, GROUP, 4)
    magnitudes = b.and_(b.bitcast(values, wide), c.vector(I32, 0x7FFFFFFF, GROUP))
    # Magnitudes compare as integers do, and what is no number is above all others.
    largest = b.bitcast(c.call(c.external(f"llvm.vector.reduce.umax.v{GROUP}i32", I32, (wide,)), magnitudes), F32)
    nothing = b.fcmp_ordered("<", largest, c.real(_SMALLEST))
    scale = b.fadd(b.fdiv(largest, c.real(127.0)), b.fmul(largest, c.real(0.0)))
    scale = b.select(nothing, c.real(0.0), scale)
    inverse = b.select(nothing, c.real(0.0), b.fdiv(c.real(127.0), largest))
    raised = c.fma(values, c.repeated(inverse, GROUP), c.vector(F32, _ROUND, GROUP))
    whole = b.sub(b.bitcast(raised, wide), c.vector(I32, _ROUND_BITS, GROUP))
    order = ir.Constant(ir.VectorType(I32, GROUP), byte_order(storage))
    bytes_ = b.trunc(whole, ir.VectorType(I8, GROUP))
    c.store(b.shuffle_vector(bytes_, bytes_, order), place, 0)
    half = GROUP // 2
    sums = []
    for first in (0, half):
        some = ir.Constant(ir.VectorType(I32, half), list(range(first, first + half)))
        kind = ir.VectorType(I32, half)
        reduce = c.external(f"llvm.vector.reduce.add.v{half}i32", I32, (kind,))
        sums.append(c.call(reduce, b.shuffle_vector(whole, whole, some)))
    total = b.add(*sums)
    c.store(scale, place, SCALE)
    c.store(b.fmul(scale, b.sitofp(total, F32)), place, SCALED_SUM)
    middle = ir.Constant(I32, -MIDDLE.get(storage.name, 0))
    parts = sums if storage.name == "q6_k" else (total, ir.Constant(I32, 0))
    for part, at in zip(parts, STARTS, strict=True):
        c.store(b.mul(part, middle), place, at)

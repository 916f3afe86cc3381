"""Keys and values in the cache as bytes, and products of whole numbers with them (`docs/numerics.md`, Attention with
int8).

Heads are rounded like rows of int8 linear layers, with one scale each. Four bytes are adjacent, for `IntegerProducts`:
four elements of a key, for all keys of a block; four positions, for all columns of a value. 128 is added to each.

With fewer heads than HEADS the arithmetic of a block takes no longer than its transfer from memory, and processors
prefetch better by themselves if memory is read sequentially.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from services.generation.target.arrays import Float32
from services.generation.target.blocks import BLOCK
from services.generation.target.kernels.attention import amx
from services.generation.target.kernels.attention.block import fetch, in_columns, weights_function
from services.generation.target.kernels.attention.form import CacheArrays, Place, Products
from services.generation.target.kernels.attention.layout import HEADS, LANES, LINE
from services.generation.target.kernels.attention.numbers import Numbers
from services.generation.target.kernels.code import F32, I8, I32, I64, POINTER, Code, Value
from services.generation.target.kernels.linear.byte_products import IntegerProducts
from services.generation.target.kernels.linear.integer import scale_of, to_bytes
from services.generation.target.kernels.machine import Machine, looks_ahead
from services.generation.target.kernels.records import Kernel
from services.generation.target.kernels.row_operations import elementwise, scaled
from services.generation.target.kernels.storages import padded
from services.generation.target.sizes import MOST_HEAD_DIM

MIDDLE = 128
SCALES = 4 * BLOCK  # bytes of a block's scales, after its keys or values
_GROUP = 32  # elements of a key, or positions, that are multiplied together
_WORDS = _GROUP // 4
_SCALE, _START = 64, 68
"""Offsets in a head's line of weights, after its bytes: their scale, and the initial sum of products."""
_FOURS = ("vnni", "sdot")
"""Machines that multiply bytes by fours: each word for all adjacent columns. Other machines go on to the next columns
after a group of words.
"""


class Rounded:
    """keys [layers][blocks][kv_heads]: [key / 4][BLOCK][4] and scales [BLOCK], keys padded to multiples of 32; values
    [layers][blocks][kv_heads]: [BLOCK / 4][padded][4] and scales [BLOCK].

    A query's line has its bytes, padded like keys, then its scale, then the initial sum of products, int32.
    """

    name = "int8"
    lines = Numbers("bfloat16", 2)

    def arrays(self, layers: int, blocks: int, kv_heads: int, key: int, value: int) -> CacheArrays:
        shape = layers, blocks, kv_heads
        columns = padded(value, LANES)
        keys, values = (*shape, padded(key, _GROUP) + 4, BLOCK), (*shape, BLOCK, columns + 4)
        return CacheArrays(np.dtype(np.uint8), keys, values)

    def key_bytes(self, c: Code, dim: Value) -> Value:
        return c.add(c.mul(_whole(c, dim), BLOCK), SCALES)

    def value_bytes(self, c: Code, padded: Value) -> Value:
        return c.add(c.mul(padded, BLOCK), SCALES)

    def store_query(self, kernel: Kernel, head_buffer: Value, to: Value, scale: Value) -> None:
        c, dim = kernel.code, kernel.record.dim
        elementwise(c, dim, head_buffer, [head_buffer], partial(scaled, c, factor=scale))
        sums = c.variable(c.vector(I32, 0, LANES))

        def keep(i: Value, whole: Value) -> None:
            c.store(c.b.trunc(whole, ir.VectorType(I8, LANES)), to, i)
            c.put(c.b.add(c.get(sums), whole), sums)

        end = c.at(to, _whole(c, dim))
        c.store(_rounded(c, head_buffer, dim, keep), end, 0)
        c.store(_start(c, c.get(sums)), end, 4)

    def store_key(self, kernel: Kernel, head_buffer: Value, to: Place) -> None:
        c, dim = kernel.code, kernel.record.dim
        line = c.at(to.block, c.mul(to.offset, 4))
        bytes_, scale = _biased(c, head_buffer, dim)
        with c.loop(c.div(_whole(c, dim), 4)) as i:
            c.store(c.load(bytes_, c.mul(i, 4), I32), line, c.mul(i, 4 * BLOCK))
        c.store(scale, line, c.mul(_whole(c, dim), BLOCK))

    def store_value(self, kernel: Kernel, head_buffer: Value, to: Place) -> None:
        c, record = kernel.code, kernel.record
        line = c.at(to.block, _byte(c, to.offset, record.padded))
        bytes_, scale = _biased(c, head_buffer, record.dim)
        with c.loop(record.dim) as i:
            c.store(c.load(bytes_, i, I8), line, c.mul(i, 4))
        c.store(scale, to.block, _scale_at(c, to.offset, record.padded))

    def copy_key(self, c: Code, source: Place, target: Place, dim: Value) -> None:
        one, other = (c.at(place.block, c.mul(place.offset, 4)) for place in (source, target))
        with c.loop(c.add(c.div(_whole(c, dim), 4), 1)) as i:  # the scale is at the place of four more elements
            at = c.mul(i, 4 * BLOCK)
            c.store(c.load(one, at, I32), other, at)

    def copy_value(self, c: Code, source: Place, target: Place, padded: Value) -> None:
        b, kind = c.b, ir.VectorType(I32, LANES)
        one, other = (c.at(place.block, c.mul(c.mul(c.div(place.offset, 4), padded), 4)) for place in (source, target))
        shifts = [c.repeated(b.trunc(c.mul(c.rem(place.offset, 4), 8), I32), LANES) for place in (source, target)]
        byte = c.vector(I32, 255, LANES)
        hole = b.xor(b.shl(byte, shifts[1]), ir.Constant(kind, [-1] * LANES))
        with c.loop(c.mul(padded, 4), step=4 * LANES) as at:
            found = b.and_(b.lshr(c.load(one, at, I32, LANES), shifts[0]), byte)
            kept = b.and_(c.load(other, at, I32, LANES), hole)
            c.store(b.or_(kept, b.shl(found, shifts[1])), other, at)
        scale = c.load(source.block, _scale_at(c, source.offset, padded), F32)
        c.store(scale, target.block, _scale_at(c, target.offset, padded))

    def products(self, module: ir.Module, machine: Machine) -> Products:
        weights = weights_function(module, machine, _round_weights)
        few = range(1, HEADS + 1)
        scores = {heads: _scores(module, machine, heads) for heads in few}
        mixes = {heads: _mix(module, machine, heads) for heads in few}
        if machine.matrices != "amx":
            return Products(scores, weights, mixes)
        for heads in range(HEADS + 1, amx.MOST + 1):
            scores[heads] = amx.scores(module, machine, heads, _whole)
            mixes[heads] = amx.mix(module, machine, heads, _SCALE)
        return Products(scores, weights, mixes, amx.registers)


def query_lines(whole: NDArray[Any], scales: Float32 | np.float32, size: int) -> Float32:
    """Lines [..., size] of queries, of whole numbers [..., dim] from -127 to 127 and scales [...]."""
    dim = padded(whole.shape[-1], _GROUP)
    lines = np.zeros((*whole.shape[:-1], size), np.float32)
    bytes_ = lines.view(np.int8)
    bytes_[..., : whole.shape[-1]] = whole
    lines[..., dim // 4] = scales
    lines.view(np.int32)[..., dim // 4 + 1] = -MIDDLE * whole.sum(-1)
    return lines


def _whole(c: Code, dim: Value) -> Value:
    """Bytes of a key or a query."""
    return c.mul(c.ceil_div(dim, _GROUP), _GROUP)


def _byte(c: Code, offset: Value, padded: Value) -> Value:
    """The offset of a position's first byte in a block's values."""
    return c.add(c.mul(c.mul(c.div(offset, 4), padded), 4), c.rem(offset, 4))


def _scale_at(c: Code, offset: Value, padded: Value) -> Value:
    return c.add(c.mul(padded, BLOCK), c.mul(offset, 4))


def _start(c: Code, whole: Value) -> Value:
    """The initial sum of products with bytes to which MIDDLE was added: -MIDDLE times the sum of the factors."""
    reduce = c.external(f"llvm.vector.reduce.add.v{LANES}i32", I32, (whole.type,))
    return c.b.mul(c.call(reduce, whole), ir.Constant(I32, -MIDDLE))


def _loaded_start(c: Code, place: Value, offset: int) -> Value:
    """The stored initial sum, or 0 if `IntegerProducts` subtracts MIDDLE itself."""
    return ir.Constant(I32, 0) if c.machine.products == "sdot" else c.load(place, offset, I32)


def _rounded(c: Code, head: Value, dim: Value, keep: Callable[[Value, Value], None]) -> Value:
    """Round a head [dim] of float32, padded with zeros, and return its scale. `keep(i, whole)` gets LANES whole numbers
    from element i on, for ascending i.
    """
    b, kind, whole = c.b, ir.VectorType(I32, LANES), _whole(c, dim)
    with c.loop(whole, dim) as i:
        c.store(c.real(0.0), head, c.mul(i, 4))
    most = c.variable(c.vector(I32, 0, LANES))
    with c.loop(whole, step=LANES) as i:
        bits = b.and_(c.load(head, c.mul(i, 4), I32, LANES), c.vector(I32, 0x7FFFFFFF, LANES))
        c.put(c.intrinsic("llvm.umax", kind, bits, c.get(most)), most)
    scale, inverse = scale_of(c, c.get(most))
    with c.loop(whole, step=LANES) as i:
        keep(i, to_bytes(c, c.load(head, c.mul(i, 4), F32, LANES), inverse))
    return scale


def _biased(c: Code, head: Value, dim: Value) -> tuple[Value, Value]:
    """The bytes of a head, MIDDLE added to each, and its scale."""
    bytes_ = c.stack_alloc(MOST_HEAD_DIM)
    middle = c.vector(I32, MIDDLE, LANES)
    scale = _rounded(
        c, head, dim, lambda i, whole: c.store(c.b.trunc(c.b.add(whole, middle), ir.VectorType(I8, LANES)), bytes_, i)
    )
    return bytes_, scale


def _fetches(machine: Machine, heads: int) -> bool:
    return heads == HEADS or machine.products not in _FOURS or not looks_ahead()


def _together(machine: Machine, heads: int) -> int:
    """Adjacent vectors of columns whose sums fit the registers, for each of the heads."""
    return machine.vectors(heads * (1 if machine.products in _FOURS else 2), BLOCK)


def _add_group(c: Code, table: Value, stride: Value, rows: Sequence[Value], totals: Sequence[Sequence[Value]]) -> None:
    """Add the products of a group to totals[h][v], variables [lanes] of int32: of words of the table, `stride` bytes
    apart, and words of row h.
    """
    lanes = c.machine.lanes

    def word(v: int, i: int) -> Value:
        return c.load(table, c.add(c.mul(stride, i), 4 * lanes * v), I32, lanes)

    products = IntegerProducts(c, [partial(word, v) for v in range(len(totals[0]))], 8, lanes)
    with c.straight(totals) as changing:
        products.add(rows, range(_WORDS), changing)


def _totals(c: Code, starts: Sequence[Value], vectors: int) -> list[list[Value]]:
    """Variables [lanes] of int32, `vectors` for each start."""
    return [[c.variable(c.repeated(start, c.machine.lanes)) for _ in range(vectors)] for start in starts]


def _as_float(c: Code, total: Value) -> Value:
    lanes = c.machine.lanes
    return c.b.sitofp(c.get(total), ir.VectorType(F32, lanes) if lanes > 1 else F32)


def _scores(module: ir.Module, machine: Machine, heads: int) -> Any:
    """out[h][j] = (scale of query h * scale of key j) * the sum of products of their bytes."""
    c = Code(module, machine, f"scores_{heads}", (POINTER, POINTER, I64, I64, POINTER, POINTER))
    keys, queries, stride, dim, out, ahead = c.arguments
    lanes, size = machine.lanes, _whole(c, dim)
    rows = [c.at(queries, c.mul(stride, h)) for h in range(heads)]
    ends = [c.at(row, size) for row in rows]
    scales, starts = [c.load(end, 0, F32) for end in ends], [_loaded_start(c, end, 4) for end in ends]
    vectors = _together(machine, heads)
    with c.loop(BLOCK, step=lanes * vectors) as first:
        totals = _totals(c, starts, vectors)
        with c.loop(size, step=_GROUP) as i:
            if _fetches(machine, heads):
                with c.when(c.compare(first, "==", 0)):
                    fetch(c, ahead, c.mul(i, BLOCK), _GROUP * BLOCK)
            table = c.at(keys, c.add(c.mul(i, BLOCK), c.mul(first, 4)))
            _add_group(c, table, c.i(4 * BLOCK), [c.at(row, i) for row in rows], totals)
        for v in range(vectors):
            place = c.add(c.mul(first, 4), 4 * lanes * v)
            each = c.load(keys, c.add(c.mul(size, BLOCK), place), F32, lanes)
            for h, sums in enumerate(totals):
                both = c.b.fmul(c.repeated(scales[h], lanes), each)
                c.store(c.b.fmul(both, _as_float(c, sums[v])), c.at(out, place), LINE * h)
    return c.done()


def _round_weights(
    c: Code, line: Value, weights: Sequence[Value], masks: Sequence[Value], values: Value, padded: Value
) -> None:
    """Weights times the scales of their values, rounded with one scale: [BLOCK] bytes, the scale, the start."""
    b, kind = c.b, ir.VectorType(I32, LANES)
    scales = c.at(values, c.mul(padded, BLOCK))
    scaled, magnitudes = [], []
    for v, (weight, mask) in enumerate(zip(weights, masks, strict=True)):
        product = b.fmul(weight, c.load(scales, 4 * LANES * v, F32, LANES))
        scaled.append(b.select(mask, product, c.vector(F32, 0.0, LANES)))
        magnitudes.append(b.and_(b.bitcast(scaled[-1], kind), c.vector(I32, 0x7FFFFFFF, LANES)))
    most = magnitudes[0]
    for other in magnitudes[1:]:
        most = c.intrinsic("llvm.umax", kind, most, other)
    scale, inverse = scale_of(c, most)
    total = c.vector(I32, 0, LANES)
    for v, product in enumerate(scaled):
        whole = to_bytes(c, product, inverse)
        c.store(b.trunc(whole, ir.VectorType(I8, LANES)), line, LANES * v)
        total = b.add(total, whole)
    c.store(scale, line, _SCALE)
    c.store(_start(c, total), line, _START)


def _mix(module: ir.Module, machine: Machine, heads: int) -> Any:
    """out[h][i] = scale of the weights of head h * the sum of products of their bytes with column i's bytes."""
    kinds = (POINTER, I64, I64, I64, POINTER, POINTER, I64, POINTER)
    c = Code(module, machine, f"mix_{heads}", kinds)
    values, padded, low, high, weights, out, stride, ahead = c.arguments
    lanes, word = machine.lanes, c.mul(padded, 4)
    rows = [c.at(weights, LINE * h) for h in range(heads)]
    scales, starts = [c.load(row, _SCALE, F32) for row in rows], [_loaded_start(c, row, _START) for row in rows]
    begin, end = c.mul(c.div(low, _GROUP), _GROUP), c.mul(c.ceil_div(high, _GROUP), _GROUP)

    def columns(i: Value, vectors: int) -> None:
        totals = _totals(c, starts, vectors)
        with c.loop(end, begin, _GROUP) as j:
            line = c.mul(j, padded)
            if _fetches(machine, heads):
                with c.when(c.compare(i, "==", 0)), c.loop(c.mul(padded, _GROUP), step=64) as at:
                    c.prefetch(c.at(ahead, line), at, locality=2)
            _add_group(c, c.at(values, c.add(line, c.mul(i, 4))), word, [c.at(row, j) for row in rows], totals)
        for h, sums in enumerate(totals):
            place = c.at(c.at(out, c.mul(stride, h)), c.mul(i, 4))
            for v, total in enumerate(sums):
                c.store(c.b.fmul(c.repeated(scales[h], lanes), _as_float(c, total)), place, 4 * lanes * v)

    in_columns(c, padded, _together(machine, heads), columns)
    return c.done()

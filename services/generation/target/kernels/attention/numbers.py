"""Keys and values in the cache as plain numbers: float32 or bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir

from services.generation.target.blocks import BLOCK
from services.generation.target.kernels.attention.block import fetch, in_columns, weights_function
from services.generation.target.kernels.attention.form import CacheArrays, Place, Products
from services.generation.target.kernels.attention.layout import HEADS, LANES, LINE
from services.generation.target.kernels.code import F32, I8, I16, I32, I64, POINTER, Code, Value
from services.generation.target.kernels.machine import Machine
from services.generation.target.kernels.records import Kernel
from services.generation.target.kernels.row_operations import elementwise, scaled, vectors
from services.generation.target.kernels.storages import padded

_BYTES = 32  # of a copied vector

_Part = Callable[[int], Value]


@dataclass(frozen=True, slots=True)
class Numbers:
    """float32, or bfloat16, rounded when it is stored and widened when it is read.

    keys [layers][blocks][kv_heads][dim][BLOCK], values [layers][blocks][kv_heads][BLOCK][padded].
    """

    name: str
    size: int  # bytes of an element

    def load(self, c: Code, pointer: Value, offset: Value | int, lanes: int = 1) -> Value:
        """Elements as float32; the offset is in bytes."""
        if self.size == 4:
            return c.load(pointer, offset, F32, lanes)
        words = ir.VectorType(I32, lanes) if lanes > 1 else I32
        wide = c.b.zext(c.load(pointer, offset, I16, lanes), words)
        return c.b.bitcast(c.b.shl(wide, c.vector(I32, 16, lanes)), ir.VectorType(F32, lanes) if lanes > 1 else F32)

    def store(self, c: Code, value: Value, pointer: Value, offset: Value | int) -> None:
        """Store float32 values, rounded to the nearest bfloat16, ties to even; NaN stays NaN."""
        if self.size == 4:
            c.store(value, pointer, offset)
            return
        b = c.b
        lanes = value.type.count if isinstance(value.type, ir.VectorType) else 1
        words: Any = ir.VectorType(I32, lanes) if lanes > 1 else I32
        bits = b.bitcast(value, words)
        half = c.vector(I32, 16, lanes)
        odd = b.and_(b.lshr(bits, half), c.vector(I32, 1, lanes))
        rounded = b.lshr(b.add(b.add(bits, c.vector(I32, 0x7FFF, lanes)), odd), half)
        nan = b.or_(b.lshr(bits, half), c.vector(I32, 0x40, lanes))
        kept = b.select(b.fcmp_unordered("uno", value, value), nan, rounded)
        c.store(b.trunc(kept, ir.VectorType(I16, lanes) if lanes > 1 else I16), pointer, offset)

    @property
    def lines(self) -> Numbers:
        return self

    def arrays(self, layers: int, blocks: int, kv_heads: int, key: int, value: int) -> CacheArrays:
        shape = layers, blocks, kv_heads
        kind = np.dtype(np.float32 if self.size == 4 else np.uint16)
        return CacheArrays(kind, (*shape, key, BLOCK), (*shape, BLOCK, padded(value, LANES)))

    def key_bytes(self, c: Code, dim: Value) -> Value:
        return c.mul(dim, self.size * BLOCK)

    def value_bytes(self, c: Code, padded: Value) -> Value:
        return c.mul(padded, self.size * BLOCK)

    def store_query(self, kernel: Kernel, head_buffer: Value, to: Value, scale: Value) -> None:
        c = kernel.code
        elementwise(c, kernel.record.dim, to, [head_buffer], partial(scaled, c, factor=scale))

    def store_key(self, kernel: Kernel, head_buffer: Value, to: Place) -> None:
        c, line = kernel.code, kernel.code.at(to.block, kernel.code.mul(to.offset, self.size))
        with c.loop(kernel.record.dim) as i:
            self.store(c, c.load(head_buffer, c.mul(i, 4), F32), line, c.mul(i, self.size * BLOCK))

    def store_value(self, kernel: Kernel, head_buffer: Value, to: Place) -> None:
        c, record = kernel.code, kernel.record
        line = c.at(to.block, c.mul(to.offset, c.mul(record.padded, self.size)))

        def stored(at: Value, lanes: int) -> None:
            self.store(c, c.load(head_buffer, at, F32, lanes), line, c.div(c.mul(at, self.size), 4))

        vectors(c, record.dim, stored)

    def copy_key(self, c: Code, source: Place, target: Place, dim: Value) -> None:
        one, other = (c.at(place.block, c.mul(place.offset, self.size)) for place in (source, target))
        with c.loop(dim) as i:
            at = c.mul(i, self.size * BLOCK)
            c.store(c.load(one, at, I32 if self.size == 4 else I16), other, at)

    def copy_value(self, c: Code, source: Place, target: Place, padded: Value) -> None:
        stride = c.mul(padded, self.size)
        one, other = (c.at(place.block, c.mul(place.offset, stride)) for place in (source, target))
        with c.loop(stride, step=_BYTES) as at:
            c.store(c.load(one, at, I8, _BYTES), other, at)

    def products(self, module: ir.Module, machine: Machine) -> Products:
        each = range(1, HEADS + 1)
        return Products(
            {heads: _scores(module, machine, self, heads) for heads in each},
            weights_function(module, machine, _kept),
            {heads: _mix(module, machine, self, heads) for heads in each},
        )


def _add_products(c: Code, sums: list[list[Value]], factor: _Part, term: _Part) -> None:
    """sums[h][v] += factor(h) * term(v), by fma. Factors are loaded into registers first if they fit, else terms."""
    heads, vectors = len(sums), len(sums[0])

    def add(h: int, v: int, factor: Value, term: Value) -> None:
        c.put(c.fma(factor, term, c.get(sums[h][v])), sums[h][v])

    if heads * vectors + heads + 1 <= c.machine.registers:
        factors = [factor(h) for h in range(heads)]
        for v in range(vectors):
            one = term(v)
            for h in range(heads):
                add(h, v, factors[h], one)
        return
    terms = [term(v) for v in range(vectors)]
    for h in range(heads):
        one = factor(h)
        for v in range(vectors):
            add(h, v, one, terms[v])


def _sums(c: Code, heads: int, vectors: int) -> list[list[Value]]:
    """Variables for vectors of sums of each head, +0."""
    zero = c.vector(F32, 0.0, c.machine.lanes)
    return [[c.variable(zero) for _ in range(vectors)] for _ in range(heads)]


def _scores(module: ir.Module, machine: Machine, form: Numbers, heads: int) -> Any:
    """scores(keys, queries, stride, dim, out, ahead): out[h][j] = sum over i of queries[h][i] * keys[i][j].

    i ascends, terms are added by fma, from +0. keys [dim][BLOCK], queries `stride` bytes apart, out [heads][BLOCK]. As
    many bytes as the keys have are prefetched from `ahead`.
    """
    c = Code(module, machine, f"scores_{heads}", (POINTER, POINTER, I64, I64, POINTER, POINTER))
    keys, queries, stride, dim, out, ahead = c.arguments
    rows = [c.at(queries, c.mul(stride, h)) for h in range(heads)]
    together, lanes = machine.vectors(heads, BLOCK), machine.lanes
    with c.loop(BLOCK, step=lanes * together) as first:
        sums = _sums(c, heads, together)
        with c.loop(dim) as i:
            at = c.mul(c.add(c.mul(i, BLOCK), first), form.size)
            line = c.at(keys, at)
            with c.when(c.compare(first, "==", 0)):
                fetch(c, ahead, at, form.size * BLOCK)
            _add_products(
                c, sums, lambda h: c.repeated(c.load(rows[h], c.mul(i, 4), F32), lanes),
                lambda v: form.load(c, line, form.size * lanes * v, lanes),
            )  # fmt: skip
        for h, each in enumerate(sums):
            for v, total in enumerate(each):
                c.store(c.get(total), c.at(out, c.mul(first, 4)), LINE * h + 4 * lanes * v)
    return c.done()


def _mix(module: ir.Module, machine: Machine, form: Numbers, heads: int) -> Any:
    """mix(values, padded, low, high, weights, out, stride, ahead): out[h][i] = sum over j of weights[h][j] values[j][i]

    j ascends from low to high, terms are added by fma, from +0. out[h] `stride` bytes apart. As many bytes as the
    values have are prefetched from `ahead`.
    """
    kinds = (POINTER, I64, I64, I64, POINTER, POINTER, I64, POINTER)
    c = Code(module, machine, f"mix_{heads}", kinds)
    values, padded, low, high, weights, out, stride, ahead = c.arguments

    lanes = machine.lanes

    def columns(i: Value, vectors: int) -> None:
        sums = _sums(c, heads, vectors)
        with c.loop(high, low) as j:
            at = c.mul(c.add(c.mul(j, padded), i), form.size)
            line = c.at(values, at)
            with c.when(c.compare(i, "==", 0)), c.loop(c.mul(padded, form.size), step=64) as rest:
                c.prefetch(c.at(ahead, at), rest, locality=2)
            _add_products(
                c, sums, lambda h: c.repeated(c.load(weights, c.add(c.mul(j, 4), LINE * h), F32), lanes),
                lambda v: form.load(c, line, form.size * lanes * v, lanes),
            )  # fmt: skip
        for h, each in enumerate(sums):
            place = c.at(c.at(out, c.mul(stride, h)), c.mul(i, 4))
            for v, total in enumerate(each):
                c.store(c.get(total), place, 4 * lanes * v)

    in_columns(c, padded, machine.vectors(heads, BLOCK), columns)
    return c.done()


def _kept(c: Code, line: Value, weights: Sequence[Value], masks: Sequence[Value], values: Value, padded: Value) -> None:
    for v, weight in enumerate(weights):
        c.store(weight, line, 4 * LANES * v)

"""Rotary position embeddings (Su et al. 2021), and the way of keys and values into the cache."""

from __future__ import annotations

from llvmlite import ir

from services.generation.target.blocks import BLOCK
from services.generation.target.kernels.attention.layout import Cached
from services.generation.target.kernels.code import F32, I32, POINTER, Code, Value
from services.generation.target.kernels.machine import Machine
from services.generation.target.kernels.records import Kernel
from services.generation.target.kernels.row_operations import inverse_rms, vectors
from services.generation.target.sizes import MOST_HEAD_DIM


def build(module: ir.Module, machine: Machine, cached: Cached) -> None:
    """Queries to `queries`, keys and values to the cache; normalised where asked, queries and keys rotated, scaled.

    queries [rows][heads][padded]; keys [blocks][kv_heads][dim][64], values [blocks][kv_heads][64][padded].
    """
    kernel = Kernel(module, machine, "rotate")
    c, record, passed = kernel.code, kernel.record, kernel.passed
    keys_end = c.add(record.heads, record.kv_heads)
    each = c.add(keys_end, record.kv_heads)
    first, last = kernel.share(c.mul(passed.rows, each))
    head_buffer = c.stack_alloc(4 * MOST_HEAD_DIM)
    with c.loop(last, first) as unit:
        row, head = c.div(unit, each), c.rem(unit, each)
        place = c.add(head, c.mul(record.gated, c.smaller(head, record.heads)))  # behind each query is its gate
        source = c.at(c.at(record.qkv, c.mul(row, record.qkv_stride)), c.mul(c.mul(place, record.dim), 4))
        slot = c.index(passed.slots, row)
        block, offset = c.div(slot, BLOCK), c.rem(slot, BLOCK)
        is_key = c.compare(head, ">=", record.heads)

        def value(source: Value = source, head: Value = head, block: Value = block, offset: Value = offset) -> None:
            _normalise(kernel, source, head_buffer, record.value_norm)
            _store_value(kernel, cached, head_buffer, c.sub(head, keys_end), block, offset)

        def rotated(
            source: Value = source, head: Value = head, block: Value = block, offset: Value = offset,
            row: Value = row, is_key: Value = is_key,
        ) -> None:  # fmt: skip
            _normalise(kernel, source, head_buffer, c.b.select(is_key, record.key_norm, record.query_norm))
            _turn(kernel, head_buffer, c.index(passed.positions, row))
            c.either(
                is_key,
                lambda: _store_key(kernel, cached, head_buffer, c.sub(head, record.heads), block, offset),
                lambda: _store_query(
                    kernel, head_buffer, c.add(c.mul(row, record.heads), head), c.index(passed.positions, row)
                ),
            )

        c.either(c.compare(head, ">=", keys_end), value, rotated)
    c.done()


def _normalise(kernel: Kernel, source: Value, head_buffer: Value, weight: Value) -> None:
    """head_buffer = the head at `source`, normalised where it has a norm."""
    c, record = kernel.code, kernel.record
    b = c.b

    def normalised() -> None:
        inverse = inverse_rms(c, source, record.dim, record.epsilon)

        def scaled(at: Value, lanes: int) -> None:
            y = b.fmul(c.load(source, at, F32, lanes), c.repeated(inverse, lanes))
            c.store(b.fmul(y, c.load(weight, at, F32, lanes)), head_buffer, at)

        vectors(c, record.dim, scaled)

    def copied() -> None:
        vectors(c, record.dim, lambda at, lanes: c.store(c.load(source, at, F32, lanes), head_buffer, at))

    c.either(b.icmp_unsigned("!=", weight, ir.Constant(POINTER, None)), normalised, copied)


def _turn(kernel: Kernel, head_buffer: Value, position: Value) -> None:
    """Rotate element i with i + n, n = `turned`, or 2i with 2i + 1; products are rounded before they are added."""
    c, record = kernel.code, kernel.record
    b, half = c.b, record.turned
    table = c.mul(c.mul(position, half), 4)
    cosines, sines = c.at(record.cosines, table), c.at(record.sines, table)
    upper = c.at(head_buffer, c.mul(half, 4))

    def turned(low: Value, high: Value, at: Value, lanes: int) -> tuple[Value, Value]:
        cos, sin = c.load(cosines, at, F32, lanes), c.load(sines, at, F32, lanes)
        return b.fsub(b.fmul(low, cos), b.fmul(high, sin)), b.fadd(b.fmul(high, cos), b.fmul(low, sin))

    def halves(at: Value, lanes: int) -> None:
        low, high = turned(c.load(head_buffer, at, F32, lanes), c.load(upper, at, F32, lanes), at, lanes)
        c.store(low, head_buffer, at)
        c.store(high, upper, at)

    def interleaved(at: Value, lanes: int) -> None:
        pairs = c.mul(at, 2)
        both = c.load(head_buffer, pairs, F32, 2 * lanes)
        low, high = turned(_every_second(c, both, 0), _every_second(c, both, 1), at, lanes)
        c.store(_alternating(c, low, high), head_buffer, pairs)

    c.either(
        c.compare(record.interleaved, "==", 0), lambda: vectors(c, half, halves), lambda: vectors(c, half, interleaved)
    )


def _every_second(c: Code, vector: Value, first: int) -> Value:
    if vector.type.count == 2:
        return c.b.extract_element(vector, ir.Constant(I32, first))
    order = ir.Constant(ir.VectorType(I32, vector.type.count // 2), list(range(first, vector.type.count, 2)))
    return c.b.shuffle_vector(vector, vector, order)


def _alternating(c: Code, low: Value, high: Value) -> Value:
    """The vector whose elements are by turns of the one and of the other."""
    if not isinstance(low.type, ir.VectorType):
        pair = c.b.insert_element(ir.Constant(ir.VectorType(F32, 2), ir.Undefined), low, ir.Constant(I32, 0))
        return c.b.insert_element(pair, high, ir.Constant(I32, 1))
    lanes = low.type.count
    order = [lane + half for lane in range(lanes) for half in (0, lanes)]
    return c.b.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, 2 * lanes), order))


def _store_query(kernel: Kernel, head_buffer: Value, number: Value, position: Value) -> None:
    c, record = kernel.code, kernel.record
    to = c.at(record.queries, c.mul(c.mul(number, record.padded), 4))
    scale = c.load(record.scales, c.mul(position, 4), F32)

    def scaled(at: Value, lanes: int) -> None:
        c.store(c.b.fmul(c.load(head_buffer, at, F32, lanes), c.repeated(scale, lanes)), to, at)

    vectors(c, record.dim, scaled)


def _store_key(kernel: Kernel, cached: Cached, head_buffer: Value, head: Value, block: Value, offset: Value) -> None:
    c, record = kernel.code, kernel.record
    place = c.add(c.mul(block, record.kv_heads), head)
    to = c.at(record.keys, c.mul(c.add(c.mul(c.mul(place, record.dim), BLOCK), offset), cached.size))
    with c.loop(record.dim) as i:
        cached.store(c, c.load(head_buffer, c.mul(i, 4), F32), to, c.mul(i, cached.size * BLOCK))


def _store_value(kernel: Kernel, cached: Cached, source: Value, head: Value, block: Value, offset: Value) -> None:
    c, record = kernel.code, kernel.record
    line = c.add(c.mul(c.add(c.mul(block, record.kv_heads), head), BLOCK), offset)
    to = c.at(record.values, c.mul(c.mul(line, record.padded), cached.size))

    def stored(at: Value, lanes: int) -> None:
        cached.store(c, c.load(source, at, F32, lanes), to, c.div(c.mul(at, cached.size), 4))

    vectors(c, record.dim, stored)

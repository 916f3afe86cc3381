"""Rotary position embeddings (Su et al. 2021), and storing keys and values in the cache."""

from __future__ import annotations

from llvmlite import ir

from services.generation.target.blocks import BLOCK
from services.generation.target.kernels.attention.form import Form, Place
from services.generation.target.kernels.code import F32, I32, POINTER, Code, Value
from services.generation.target.kernels.machine import Machine
from services.generation.target.kernels.records import Kernel
from services.generation.target.kernels.row_operations import normalise, vectors
from services.generation.target.sizes import MOST_HEAD_DIM


def build(module: ir.Module, machine: Machine, form: Form) -> None:
    """Add `rotate`: heads are normalised if they have a norm, queries and keys rotated, queries scaled; queries are
    stored in `queries` [rows][heads][padded], in the form's own layout, keys and values in the cache.
    """
    kernel = Kernel(module, machine, "rotate")
    c, record, passed = kernel.code, kernel.record, kernel.passed
    keys_end = c.add(record.heads, record.kv_heads)
    each = c.add(keys_end, record.kv_heads)
    first, last = kernel.share(c.mul(passed.rows, each))
    head_buffer = c.stack_alloc(4 * MOST_HEAD_DIM)
    keys_size, values_size = form.key_bytes(c, record.dim), form.value_bytes(c, record.padded)

    def in_cache(array: Value, size: Value, head: Value, slot: Value) -> Place:
        block = c.add(c.mul(c.div(slot, BLOCK), record.kv_heads), head)
        return Place(c.at(array, c.mul(block, size)), c.rem(slot, BLOCK))

    with c.loop(last, first) as unit:
        row, head = c.div(unit, each), c.rem(unit, each)
        place = c.add(head, c.mul(record.gated, c.smaller(head, record.heads)))  # each query is followed by its gate
        source = c.at(c.at(record.qkv, c.mul(row, record.qkv_stride)), c.mul(c.mul(place, record.dim), 4))
        slot = c.index(passed.slots, row)
        is_key = c.compare(head, ">=", record.heads)

        def value() -> None:
            _normalise(kernel, source, head_buffer, record.value_norm)
            form.store_value(kernel, head_buffer, in_cache(record.values, values_size, c.sub(head, keys_end), slot))

        def rotated() -> None:
            _normalise(kernel, source, head_buffer, c.b.select(is_key, record.key_norm, record.query_norm))
            position = c.index(passed.positions, row)
            _turn(kernel, head_buffer, position)

            def key() -> None:
                form.store_key(kernel, head_buffer, in_cache(record.keys, keys_size, c.sub(head, record.heads), slot))

            def query() -> None:
                to = c.at(record.queries, c.mul(c.mul(c.add(c.mul(row, record.heads), head), record.padded), 4))
                form.store_query(kernel, head_buffer, to, c.load(record.scales, c.mul(position, 4), F32))

            c.either(is_key, key, query)

        c.either(c.compare(head, ">=", keys_end), value, rotated)
    c.done()


def _normalise(kernel: Kernel, source: Value, head_buffer: Value, weight: Value) -> None:
    """head_buffer = the head at `source`, normalised if it has a norm."""
    c, record = kernel.code, kernel.record

    def normalised() -> None:
        normalise(c, source, head_buffer, weight, record.dim, record.epsilon)

    def copied() -> None:
        vectors(c, record.dim, lambda at, lanes: c.store(c.load(source, at, F32, lanes), head_buffer, at))

    c.either(c.b.icmp_unsigned("!=", weight, ir.Constant(POINTER, None)), normalised, copied)


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
    """The vector whose elements alternate between the two."""
    if not isinstance(low.type, ir.VectorType):
        pair = c.b.insert_element(ir.Constant(ir.VectorType(F32, 2), ir.Undefined), low, ir.Constant(I32, 0))
        return c.b.insert_element(pair, high, ir.Constant(I32, 1))
    lanes = low.type.count
    order = [lane + half for lane in range(lanes) for half in (0, lanes)]
    return c.b.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, 2 * lanes), order))

"""Attention over the paged key/value cache: `docs/numerics.md`, Attention.

The keys that a row sees are divided into blocks of 64 by position. Each block is computed separately (its largest
score, the sum of its weights, its weighted values); blocks are joined in ascending order. No bit depends on the rows
that compute a block together, on the member that computes it, or on the slots of keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from services.generation.target.blocks import BLOCK
from services.generation.target.kernels.attention.block import block_function
from services.generation.target.kernels.attention.form import Form
from services.generation.target.kernels.attention.layout import LANES, Layout, is_split, seen
from services.generation.target.kernels.code import F32, I64, POINTER, Code, Value
from services.generation.target.kernels.machine import Machine
from services.generation.target.kernels.records import FIELDS, Kernel, Words
from services.generation.target.kernels.row_operations import decay

_Take = Callable[[Value, Value, Value, Value], None]
"""take(row, rows, block, first block): process the results in `Layout.one` of a block, for rows from `row` on."""


def join_function(module: ir.Module, machine: Machine) -> Any:
    """join(all, one, group_size, padded, first): join one block's results to earlier ones, for each query head.

    With largest scores M and m: top = max(M, m), a = exp(M - top), c = exp(m - top), then sums and values become
    fma(new, c, old * a); one of a and c is exp(0) = 1. The first block is copied.
    """
    c = Code(module, machine, "join", (POINTER, POINTER, I64, I64, I64))
    all_, one, group_size, padded, first = c.arguments
    b, size = c.b, c.mul(c.add(padded, LANES), 4)

    def taken() -> None:
        with c.loop(c.mul(group_size, size), step=4 * LANES) as at:
            c.store(c.load(one, at, F32, LANES), all_, at)

    def joined() -> None:
        with c.loop(group_size) as head:
            old, new = c.at(all_, c.mul(head, size)), c.at(one, c.mul(head, size))
            old_end, new_end = c.at(old, c.mul(padded, 4)), c.at(new, c.mul(padded, 4))
            before, now = c.load(old_end, 0, F32), c.load(new_end, 0, F32)
            is_larger = b.fcmp_ordered(">", now, before)
            c.store(b.select(is_larger, now, before), old_end, 0)
            power = decay(c, b.select(is_larger, b.fsub(before, now), b.fsub(now, before)))
            fade, gain = b.select(is_larger, power, c.real(1.0)), b.select(is_larger, c.real(1.0), power)
            total = c.fma(c.load(new_end, 4, F32), gain, b.fmul(c.load(old_end, 4, F32), fade))
            c.store(total, old_end, 4)
            fades, gains = c.repeated(fade, LANES), c.repeated(gain, LANES)
            with c.loop(padded, step=LANES) as i:
                at = c.mul(i, 4)
                kept = b.fmul(c.load(old, at, F32, LANES), fades)
                c.store(c.fma(c.load(new, at, F32, LANES), gains, kept), old, at)

    c.either(c.compare(first, "!=", 0), taken, joined)
    return c.done()


def sink_function(module: ir.Module, machine: Machine, join: Any) -> Any:
    """sink(record, all, one, kv): if there are sinks, join a block of them, which is made in `one`.

    Its largest score is the head's sink, its sum of weights 1, and its values are 0.
    """
    c = Code(module, machine, "sink", (POINTER, POINTER, POINTER, I64))
    record_, all_, one, kv = c.arguments
    record = Words(c, record_, FIELDS["attend"], 2)
    group_size, values = c.div(record.heads, record.kv_heads), c.mul(record.padded, 4)
    with c.when(c.b.icmp_unsigned("!=", record.sinks, ir.Constant(POINTER, None))):
        with c.loop(group_size) as h:
            head = c.at(one, c.mul(h, c.add(values, 4 * LANES)))
            with c.loop(values, step=4 * LANES) as at:
                c.store(c.vector(F32, 0.0, LANES), head, at)
            sink = c.load(record.sinks, c.mul(c.add(c.mul(kv, group_size), h), 4), F32)
            c.store(sink, c.at(head, values), 0)
            c.store(c.real(1.0), c.at(head, values), 4)
        c.call(join, all_, one, group_size, record.padded, c.i(0))
    return c.done()


def finish_function(module: ir.Module, machine: Machine) -> Any:
    """finish(record, all, row, kv): mixed[row][head] = values / sum of weights."""
    c = Code(module, machine, "finish", (POINTER, POINTER, I64, I64))
    record_, all_, row, kv = c.arguments
    record = Words(c, record_, FIELDS["attend"], 2)
    group_size = c.div(record.heads, record.kv_heads)
    size = c.mul(c.add(record.padded, LANES), 4)
    with c.loop(group_size) as h:
        result, head = c.at(all_, c.mul(h, size)), c.add(c.mul(kv, group_size), h)
        total = c.load(c.at(result, c.mul(record.padded, 4)), 4, F32)
        line = c.at(record.mixed, c.mul(row, record.mixed_stride))
        out = c.at(line, c.mul(c.mul(head, record.dim), 4))
        whole = c.sub(record.dim, c.rem(record.dim, LANES))
        with c.loop(whole, step=LANES) as i:
            at = c.mul(i, 4)
            c.store(c.b.fdiv(c.load(result, at, F32, LANES), c.repeated(total, LANES)), out, at)
        with c.loop(record.dim, whole) as i:
            at = c.mul(i, 4)
            c.store(c.b.fdiv(c.load(result, at, F32), total), out, at)
    return c.done()


def build(module: ir.Module, machine: Machine, form: Form) -> None:
    """Add `attend` and `combine`: for few rows, blocks are divided among members, and `combine` joins their results."""
    parts = _AttentionFunctions(module, machine, form)
    _attend(module, machine, parts)
    _combine(module, machine, parts)


class _AttentionFunctions:
    """The functions that both kernels call."""

    def __init__(self, module: ir.Module, machine: Machine, form: Form) -> None:
        self.join = join_function(module, machine)
        self.sink = sink_function(module, machine, self.join)
        self.finish = finish_function(module, machine)
        products = form.products(module, machine)
        self.block, self.registers = block_function(module, machine, form, products), products.registers


def _attend(module: ir.Module, machine: Machine, parts: _AttentionFunctions) -> None:
    kernel = Kernel(module, machine, "attend")
    c, record, passed = kernel.code, kernel.record, kernel.passed
    scratch = kernel.scratch()
    layout = Layout(c, record, scratch)
    rows, kv_heads = passed.rows, record.kv_heads

    def compute(tile: _Tile, span: _Span, kv: Value, queries: Value, block: Value, take: _Take) -> None:
        """Compute a block of a tile and `take` the results: all rows together if they see the whole block."""

        def call(row: Value, some: Value) -> None:
            before = c.mul(c.mul(c.sub(row, tile.start), layout.group_size), c.mul(record.padded, 4))
            arguments = (c.at(queries, before), row, some, kv, block, layout.one)
            c.call(parts.block, c.arguments[0], c.arguments[1], scratch, *arguments)

        def together() -> None:
            some = c.sub(tile.end, tile.start)
            call(tile.start, some)
            take(tile.start, some, block, span.first)

        def one_by_one() -> None:
            with c.loop(tile.end, tile.start) as row:
                begin, end = _blocks(c, record, passed, row)
                with c.when(c.b.and_(c.compare(begin, "<=", block), c.compare(block, "<", end))):
                    call(row, c.i(1))
                    take(row, c.i(1), block, begin)

        c.either(span.is_whole(block), together, one_by_one)

    def by_rows() -> None:
        first, last = kernel.share(c.mul(rows, kv_heads))
        with c.loop(kv_heads) as kv:
            before = c.mul(kv, rows)
            own, end = c.larger(c.sub(first, before), 0), c.smaller(c.sub(last, before), rows)
            with c.loop(end, own, layout.tile) as start:
                tile = _Tile(start, c.smaller(c.add(start, layout.tile), end))

                def join(row: Value, some: Value, block: Value, begin: Value) -> None:
                    heads, is_first = c.mul(some, layout.group_size), c.b.zext(c.compare(block, "==", begin), I64)
                    c.call(parts.join, layout.of_row(c.sub(row, start)), layout.one, heads, record.padded, is_first)

                span, queries = _Span(c, record, passed, tile), _copied_queries(c, record, layout, tile, kv)
                with c.loop(span.end, span.first) as block:
                    compute(tile, span, kv, queries, block, join)
                with c.loop(tile.end, start) as row:
                    so_far = layout.of_row(c.sub(row, start))
                    c.call(parts.sink, c.arguments[0], so_far, layout.one, kv)
                    c.call(parts.finish, c.arguments[0], so_far, row, kv)

    def by_blocks() -> None:
        blocks = _Span(c, record, passed, _Tile(c.i(0), rows))
        # If there are enough blocks for all members, rows compute a block together, so that it is read once.
        many = c.compare(c.mul(kv_heads, c.sub(blocks.end, blocks.first)), ">=", c.mul(kernel.members, 4))
        height = c.b.select(many, layout.tile, c.i(1))
        with c.loop(rows, step=height) as start:
            tile = _Tile(start, c.smaller(c.add(start, height), rows))
            span = _Span(c, record, passed, tile)
            # A member reads the cache sequentially, all key heads of a block and then the next block: processors fetch
            # it three times as fast as the scattered keys and values of one head.
            first, last = kernel.share(c.mul(c.sub(span.end, span.first), kv_heads))
            with c.loop(last, first) as number:
                block, kv = c.add(span.first, c.div(number, kv_heads)), c.rem(number, kv_heads)

                def keep(row: Value, some: Value, block: Value, _: Value) -> None:
                    with c.loop(some) as r:
                        place = c.add(c.mul(c.add(c.mul(kv, rows), c.add(row, r)), record.blocks), block)
                        to, one = c.at(record.partial, c.mul(place, layout.row)), c.at(layout.one, c.mul(r, layout.row))
                        with c.loop(layout.row, step=4 * LANES) as at:
                            c.store(c.load(one, at, F32, LANES), to, at)

                compute(tile, span, kv, _copied_queries(c, record, layout, tile, kv), block, keep)

    with parts.registers(c):
        c.either(is_split(kernel), by_blocks, by_rows)
    c.done()


def _copied_queries(c: Code, record: Any, layout: Layout, tile: _Tile, kv: Value) -> Value:
    """Copy the queries of a tile's rows for a key head: [rows][group size][padded]."""
    size = c.mul(layout.group_size, c.mul(record.padded, 4))
    with c.loop(tile.end, tile.start) as row:
        source = c.at(record.queries, c.mul(c.add(c.mul(row, record.kv_heads), kv), size))
        to = c.at(layout.queries, c.mul(c.sub(row, tile.start), size))
        with c.loop(size, step=4 * LANES) as at:
            c.store(c.load(source, at, F32, LANES), to, at)
    return layout.queries


def _combine(module: ir.Module, machine: Machine, parts: _AttentionFunctions) -> None:
    """Join the blocks' results of rows whose blocks were shared out."""
    kernel = Kernel(module, machine, "attend", "combine")
    c, record, passed = kernel.code, kernel.record, kernel.passed
    layout = Layout(c, record, kernel.scratch())
    rows, so_far = passed.rows, layout.of_row(c.i(0))
    with c.when(is_split(kernel)):
        first, last = kernel.share(c.mul(rows, record.kv_heads))
        with c.loop(last, first) as unit:
            kv, row = c.div(unit, rows), c.rem(unit, rows)
            begin, end = _blocks(c, record, passed, row)
            with c.loop(end, begin) as block:
                number = c.add(c.mul(unit, record.blocks), block)
                one = c.at(record.partial, c.mul(c.mul(number, layout.group_size), layout.result))
                is_first = c.b.zext(c.compare(block, "==", begin), I64)
                c.call(parts.join, so_far, one, layout.group_size, record.padded, is_first)
            c.call(parts.sink, c.arguments[0], so_far, layout.one, kv)
            c.call(parts.finish, c.arguments[0], so_far, row, kv)
    c.done()


@dataclass(frozen=True, slots=True)
class _Tile:
    """Rows [start, end) that compute blocks together."""

    start: Value
    end: Value


class _Span:
    """The blocks [first, end) that any row of a tile of at least one row sees. `is_whole`: all rows are of one sequence
    and see every key of the block, its keys are one block of the cache, and it is the first block of all rows or none.
    """

    def __init__(self, c: Code, record: Any, passed: Any, tile: _Tile) -> None:
        most = c.i(1 << 62)
        low, high, latest, whole, until = (c.variable(v) for v in (most, c.i(0), c.i(0), c.i(0), most))
        sequence = c.index(passed.sequences, tile.start)
        with c.loop(tile.end, tile.start) as row:
            first, length = seen(c, record, passed, row)
            begin, run = c.div(first, BLOCK), c.smaller(length, c.index(passed.contiguous, row))
            is_same = c.compare(c.index(passed.sequences, row), "==", sequence)
            c.put(c.smaller(begin, c.get(low)), low)
            c.put(c.larger(c.ceil_div(length, BLOCK), c.get(high)), high)
            c.put(c.larger(begin, c.get(latest)), latest)
            c.put(c.larger(c.ceil_div(first, BLOCK), c.get(whole)), whole)
            c.put(c.smaller(c.b.select(is_same, c.div(run, BLOCK), c.i(0)), c.get(until)), until)
        self._code, self.first, self.end = c, c.get(low), c.get(high)
        is_one = c.compare(self.first, "==", c.get(latest))
        self._whole, self._until = c.b.select(is_one, c.get(whole), c.add(c.get(latest), 1)), c.get(until)

    def is_whole(self, block: Value) -> Value:
        c = self._code
        return c.b.and_(c.compare(self._whole, "<=", block), c.compare(block, "<", self._until))


def _blocks(c: Code, record: Any, passed: Any, row: Value) -> tuple[Value, Value]:
    """The blocks [first, end) that a row sees."""
    first, length = seen(c, record, passed, row)
    return c.div(first, BLOCK), c.ceil_div(length, BLOCK)

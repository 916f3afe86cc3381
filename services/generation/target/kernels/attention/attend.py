"""Attention over the paged key/value cache: `docs/numerics.md`, Attention.

The keys that a row sees are cut into blocks of 64 by their position. Each block is finished by itself (its largest
score, the sum of its weights, its weighted values); blocks are joined in ascending order. So it makes no difference
which rows go through a block together, which member of the team takes which block, or where in the cache a key lies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from services.generation.target.blocks import BLOCK
from services.generation.target.kernels.attention.block import Products, block_function
from services.generation.target.kernels.attention.layout import LANES, TILE, Cached, Layout, is_split, seen
from services.generation.target.kernels.code import F32, I64, POINTER, Code, Value
from services.generation.target.kernels.machine import Machine
from services.generation.target.kernels.records import FIELDS, Kernel, Words
from services.generation.target.kernels.row_operations import exponential


def join_function(module: ir.Module, machine: Machine) -> Any:
    """join(all, one, group_size, padded, first): the results so far and one more block's, for each query head.

    With largest scores M and m: top = max(M, m), a = exp(M - top), c = exp(m - top), then sums and values become
    fma(new, c, old * a). The first block is taken as it is.
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
            top = b.select(b.fcmp_ordered(">", now, before), now, before)
            fade, gain = exponential(c, b.fsub(before, top)), exponential(c, b.fsub(now, top))
            c.store(top, old_end, 0)
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
    """sink(record, all, one, kv): where there are sinks, join a block that has nothing but them; `one` is room for it.

    Of each head the largest score is the head's sink, the sum of weights 1, and all values are 0.
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


def build(module: ir.Module, machine: Machine, cached: Cached) -> None:
    """Add `attend` and `combine`: with few rows, members share out blocks, and their results are joined afterwards."""
    parts = _AttentionFunctions(module, machine, cached)
    _attend(module, machine, parts)
    _combine(module, machine, parts)


class _AttentionFunctions:
    """The functions that both kernels are made of."""

    def __init__(self, module: ir.Module, machine: Machine, cached: Cached) -> None:
        products = Products(module, machine, cached)
        self.join = join_function(module, machine)
        self.sink = sink_function(module, machine, self.join)
        self.finish = finish_function(module, machine)
        self.block = block_function(module, machine, products)


def _attend(module: ir.Module, machine: Machine, parts: _AttentionFunctions) -> None:
    kernel = Kernel(module, machine, "attend")
    c, record, passed = kernel.code, kernel.record, kernel.passed
    scratch = kernel.scratch()
    layout = Layout(c, record, scratch)
    rows, kv_heads = passed.rows, record.kv_heads
    arguments = (c.arguments[0], c.arguments[1], scratch)

    def by_rows() -> None:
        first, last = kernel.share(c.mul(rows, kv_heads))
        with c.loop(kv_heads) as kv:
            before = c.mul(kv, rows)
            own, end = c.larger(c.sub(first, before), 0), c.smaller(c.sub(last, before), rows)
            with c.loop(end, own, TILE) as start:
                tile = start, c.smaller(c.add(start, TILE), end)
                low, high = _all_blocks(c, record, passed, tile)
                with c.loop(high, low) as block, _rows_that_see(c, record, passed, tile, block) as (row, begin, last_):
                    c.call(parts.block, *arguments, row, kv, block, layout.one, c.smaller(c.add(block, 1), last_))
                    so_far = layout.of_row(c.sub(row, start))
                    c.call(parts.join, so_far, layout.one, layout.group_size, record.padded, _flag(c, block, begin))
                with c.loop(tile[1], start) as row:
                    so_far = layout.of_row(c.sub(row, start))
                    c.call(parts.sink, c.arguments[0], so_far, layout.one, kv)
                    c.call(parts.finish, c.arguments[0], so_far, row, kv)

    def by_blocks() -> None:
        low, high = _all_blocks(c, record, passed, (c.i(0), rows))
        # Rows go through a block together, which then is fetched once, where there are enough blocks for all members.
        many = c.compare(c.mul(kv_heads, c.sub(high, low)), ">=", c.mul(kernel.members, 4))
        together, groups = c.b.select(many, rows, c.i(1)), c.b.select(many, c.i(1), rows)
        with c.loop(c.mul(kv_heads, groups)) as group:
            kv, first = c.div(group, groups), c.mul(c.rem(group, groups), together)
            own = c.rem(c.add(c.sub(kernel.member, c.rem(group, kernel.members)), kernel.members), kernel.members)
            tile = first, c.add(first, together)
            with (
                c.loop(high, c.add(low, own), kernel.members) as block,
                _rows_that_see(c, record, passed, tile, block) as (row, _, last),
            ):
                number = c.add(c.mul(c.add(c.mul(kv, rows), row), record.blocks), block)
                out = c.at(record.partial, c.mul(c.mul(number, layout.group_size), layout.result))
                following = c.smaller(c.add(block, kernel.members), last)
                c.call(parts.block, *arguments, row, kv, block, out, following)

    c.either(is_split(kernel), by_blocks, by_rows)
    c.done()


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
                c.call(parts.join, so_far, one, layout.group_size, record.padded, _flag(c, block, begin))
            c.call(parts.sink, c.arguments[0], so_far, layout.one, kv)
            c.call(parts.finish, c.arguments[0], so_far, row, kv)
    c.done()


def _all_blocks(c: Code, record: Any, passed: Any, rows: tuple[Value, Value]) -> tuple[Value, Value]:
    """[first, end) of the blocks that any of the rows [first, end) sees; at least one row."""
    low, high = c.variable(I64, c.i(1 << 62)), c.variable(I64, c.i(0))
    with c.loop(rows[1], rows[0]) as row:
        begin, end = _blocks(c, record, passed, row)
        c.put(c.smaller(begin, c.get(low)), low)
        c.put(c.larger(end, c.get(high)), high)
    return c.get(low), c.get(high)


@contextmanager
def _rows_that_see(
    c: Code, record: Any, passed: Any, rows: tuple[Value, Value], block: Value
) -> Iterator[tuple[Value, Value, Value]]:
    """(row, the first block that it sees, the last) for each of the rows [first, end) that sees the block."""
    with c.loop(rows[1], rows[0]) as row:
        begin, end = _blocks(c, record, passed, row)
        with c.when(c.b.and_(c.compare(begin, "<=", block), c.compare(block, "<", end))):
            yield row, begin, c.sub(end, 1)


def _flag(c: Code, block: Value, begin: Value) -> Value:
    return c.b.zext(c.compare(block, "==", begin), I64)


def _blocks(c: Code, record: Any, passed: Any, row: Value) -> tuple[Value, Value]:
    """[first, end) of the blocks that a row sees."""
    first, length = seen(c, record, passed, row)
    return c.div(first, BLOCK), c.ceil_div(length, BLOCK)

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
from services.generation.target.canonical.kernels.attention.block import block_function
from services.generation.target.canonical.kernels.attention.cached import Cached
from services.generation.target.canonical.kernels.attention.joining import finish_function, join_function, sink_function
from services.generation.target.canonical.kernels.attention.layout import TILE, Layout, is_split, seen
from services.generation.target.canonical.kernels.attention.products import Products
from services.generation.target.canonical.kernels.code import I64, Code, Value
from services.generation.target.canonical.kernels.machine import Machine
from services.generation.target.canonical.kernels.records import Kernel


def build(module: ir.Module, machine: Machine, cached: Cached) -> None:
    """Add `attend` and `combine`: with few rows, members share out blocks, and their results are joined afterwards."""
    parts = _Parts(module, machine, cached)
    _attend(module, machine, parts)
    _combine(module, machine, parts)


class _Parts:
    """The functions that both kernels are made of."""

    def __init__(self, module: ir.Module, machine: Machine, cached: Cached) -> None:
        products = Products(module, machine, cached)
        self.join = join_function(module, machine)
        self.sink = sink_function(module, machine, self.join)
        self.finish = finish_function(module, machine)
        self.block = block_function(module, machine, products)


def _attend(module: ir.Module, machine: Machine, parts: _Parts) -> None:
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
                    c.call(parts.join, so_far, layout.one, layout.sharing, record.padded, _flag(c, block, begin))
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
                number = c.add(c.mul(c.add(c.mul(kv, rows), row), passed.table_stride), block)
                out = c.at(record.partial, c.mul(c.mul(number, layout.sharing), layout.result))
                following = c.smaller(c.add(block, kernel.members), last)
                c.call(parts.block, *arguments, row, kv, block, out, following)

    c.either(is_split(kernel), by_blocks, by_rows)
    c.done()


def _combine(module: ir.Module, machine: Machine, parts: _Parts) -> None:
    """Join the blocks' results of rows whose blocks were shared out."""
    kernel = Kernel(module, machine, "attend", "combine")
    c, record, passed = kernel.code, kernel.record, kernel.passed
    layout = Layout(c, record, kernel.scratch())
    rows, most, so_far = passed.rows, passed.table_stride, layout.of_row(c.i(0))
    with c.when(is_split(kernel)):
        first, last = kernel.share(c.mul(rows, record.kv_heads))
        with c.loop(last, first) as unit:
            kv, row = c.div(unit, rows), c.rem(unit, rows)
            begin, end = _blocks(c, record, passed, row)
            with c.loop(end, begin) as block:
                number = c.add(c.mul(unit, most), block)
                one = c.at(record.partial, c.mul(c.mul(number, layout.sharing), layout.result))
                c.call(parts.join, so_far, one, layout.sharing, record.padded, _flag(c, block, begin))
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

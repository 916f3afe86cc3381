"""Attention over the paged key/value cache: `docs/numerics.md`, Attention.

The keys that a row sees are cut into blocks of 64 by their position. Each block is finished by itself (its largest
score, the sum of its weights, its weighted values); blocks are joined in ascending order. So it makes no difference
which rows go through a block together, which member of the team takes which block, or where in the cache a key lies.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from services.generation.target.blocks import BLOCK
from services.generation.target.canonical.kernels.attention.block import block_function
from services.generation.target.canonical.kernels.attention.cached import Cached
from services.generation.target.canonical.kernels.attention.joining import finish_function, join_function, sink_function
from services.generation.target.canonical.kernels.attention.layout import Layout, is_split, seen
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
        with c.loop(last, first) as unit:
            kv, row = c.div(unit, rows), c.rem(unit, rows)
            begin, end = _blocks(c, record, passed, row)
            with c.loop(end, begin) as block:
                c.call(parts.block, *arguments, row, kv, block, layout.one)
                c.call(parts.join, layout.all, layout.one, layout.sharing, record.padded, _flag(c, block, begin))
            c.call(parts.sink, c.arguments[0], layout.all, layout.one, kv)
            c.call(parts.finish, c.arguments[0], layout.all, row, kv)

    def by_blocks() -> None:
        most = passed.table_stride
        with c.loop(c.mul(rows, kv_heads)) as unit:
            kv, row = c.div(unit, rows), c.rem(unit, rows)
            begin, end = _blocks(c, record, passed, row)
            offset = c.rem(c.add(unit, kernel.members), kernel.members)
            start = c.add(begin, c.rem(c.add(c.sub(kernel.member, offset), kernel.members), kernel.members))
            with c.loop(end, start, kernel.members) as block:
                number = c.add(c.mul(unit, most), block)
                out = c.at(record.partial, c.mul(c.mul(number, layout.sharing), layout.result))
                c.call(parts.block, *arguments, row, kv, block, out)

    c.either(is_split(kernel), by_blocks, by_rows)
    c.done()


def _combine(module: ir.Module, machine: Machine, parts: _Parts) -> None:
    """Join the blocks' results of rows whose blocks were shared out."""
    kernel = Kernel(module, machine, "attend", "combine")
    c, record, passed = kernel.code, kernel.record, kernel.passed
    layout = Layout(c, record, kernel.scratch())
    rows, most = passed.rows, passed.table_stride
    with c.when(is_split(kernel)):
        first, last = kernel.share(c.mul(rows, record.kv_heads))
        with c.loop(last, first) as unit:
            kv, row = c.div(unit, rows), c.rem(unit, rows)
            begin, end = _blocks(c, record, passed, row)
            with c.loop(end, begin) as block:
                number = c.add(c.mul(unit, most), block)
                one = c.at(record.partial, c.mul(c.mul(number, layout.sharing), layout.result))
                c.call(parts.join, layout.all, one, layout.sharing, record.padded, _flag(c, block, begin))
            c.call(parts.sink, c.arguments[0], layout.all, layout.one, kv)
            c.call(parts.finish, c.arguments[0], layout.all, row, kv)
    c.done()


def _flag(c: Code, block: Value, begin: Value) -> Value:
    return c.b.zext(c.compare(block, "==", begin), I64)


def _blocks(c: Code, record: Any, passed: Any, row: Value) -> tuple[Value, Value]:
    """[first, end) of the blocks that a row sees."""
    first, length = seen(c, record, passed, row)
    return c.div(first, BLOCK), c.ceil_div(length, BLOCK)

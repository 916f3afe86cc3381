"""Linear layers of quantised weights and x rounded to bytes: `docs/numerics.md`, Linear with int8.

Products of a group of 32 inputs are summed as integers, which has no order; groups are added in ascending order by fma.
Lanes run across columns, tiles across rows and columns, members of the team across panels, as in `linear`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from services.generation.target.canonical.kernels.code import F32, I32, I64, POINTER, Code, Value
from services.generation.target.canonical.kernels.linear.integer_products import IntegerProducts
from services.generation.target.canonical.kernels.linear.linear_layout import panel_bytes
from services.generation.target.canonical.kernels.linear.quantised import BITS, MIDDLE, QuantisedGroup
from services.generation.target.canonical.kernels.linear.rounding import (
    ROUNDED,
    SCALE,
    SCALED_SUM,
    STARTS,
    round_rows,
)
from services.generation.target.canonical.kernels.machine import Machine
from services.generation.target.canonical.kernels.records import FIELDS, Kernel, Words
from services.generation.target.canonical.kernels.storages import PANEL, Storage

_TILE = 8  # rows, at most, that a group's weights are multiplied with, once they are in registers
_X_BYTES = 3 << 17  # of rounded x that go through the panels together: most of a second-level cache
_NOWHERE = 1024  # bytes at the end of the scratch for rows that nobody asked for
_AHEAD = 4096  # bytes of weights that are fetched ahead
_DWORDS = 8  # of a group's rounded bytes


def _tiles(machine: Machine) -> tuple[int, ...]:
    """Rows that tiles are compiled for, the most last."""
    return (1, 2, 3, 4, 6, _TILE) if machine.lanes > 1 else (1,)


def build(module: ir.Module, machine: Machine, storage: Storage) -> None:
    """Add the kernel `linear` to a module; `storage` is a quantised one."""
    tiles = {rows: _tile(module, machine, storage, rows) for rows in _tiles(machine)}
    most = max(tiles)
    kernel = Kernel(module, machine, "linear")
    c, record = kernel.code, kernel.record
    first, last = kernel.share(c.div(record.panels, record.unit))
    first, last = c.mul(first, record.unit), c.mul(last, record.unit)
    rows, x = kernel.rows(), kernel.scratch()
    nowhere = c.at(x, c.sub(record.scratch_size, _NOWHERE))
    together = c.mul(c.larger(c.div(c.div(c.i(_X_BYTES), c.mul(record.groups, ROUNDED)), most), 1), most)
    with c.loop(rows, step=together) as begin:
        some = c.smaller(c.sub(rows, begin), together)
        round_rows(c, record, storage, c.at(record.x, c.mul(begin, record.x_stride)), some, x)
        y = c.at(record.y, c.mul(begin, record.y_stride))
        stride = c.mul(some, ROUNDED)

        def run(
            row: Value | int, first: Value, last: Value, y: Value = y, stride: Value = stride, some: Value = some
        ) -> None:
            arguments = (
                c.arguments[0], c.at(x, c.mul(row, ROUNDED)), stride, c.at(y, c.mul(row, record.y_stride)), nowhere,
            )  # fmt: skip
            count = c.smaller(c.sub(some, row), most)

            def case(size: int) -> Callable[[], None]:
                return lambda: c.call(tiles[size], *arguments, count, first, last) and None

            c.choose(count, {n: case(next(size for size in tiles if size >= n)) for n in range(1, most + 1)})

        def few() -> None:
            run(0, first, last)

        def many(some: Value = some) -> None:
            with c.loop(last, first) as panel, c.loop(some, step=most) as row:
                run(row, panel, c.add(panel, 1))

        c.either(c.compare(some, "<=", most), few, many)
    c.done()


def _tile(module: ir.Module, machine: Machine, storage: Storage, rows: int) -> Any:
    """tile(record, x, x_stride, y, nowhere, count, first, last): panels [first, last) for `count` of so many rows.

    x is rounded; a row is ROUNDED bytes behind the one before it, a group x_stride bytes.
    """
    c = Code(module, machine, f"tile_{rows}", (POINTER, POINTER, I64, POINTER, POINTER, I64, I64, I64))
    record_, x, x_stride, y, nowhere, count, first, last = c.arguments
    record = Words(c, record_, FIELDS["linear"], 2)
    lanes, size = machine.lanes, panel_bytes(c, record, storage)
    vector = ir.VectorType(F32, lanes) if lanes > 1 else F32
    columns = range(0, PANEL, lanes)
    with c.loop(last, first) as panel:
        place = c.at(record.weights, c.mul(panel, size))
        sums = [[c.variable(vector, c.vector(F32, 0.0, lanes)) for _ in range(rows)] for _ in columns]

        def group(header: Value, start: Value, number: Value, sums: list[list[Value]] = sums) -> None:
            near = c.at(x, c.mul(number, x_stride))
            for at in range(0, storage.group, 64):
                c.prefetch(start, _AHEAD + at)
            for column, totals in zip(columns, sums, strict=True):
                weights = QuantisedGroup(c, storage, header, start, column, lanes)
                _add_group(c, storage, weights, [c.at(near, ROUNDED * r) for r in range(rows)], totals)

        if storage.header:
            shared = storage.header + storage.groups * storage.group
            with c.loop(c.div(record.groups, storage.groups)) as block:
                header = c.at(place, c.mul(block, shared))
                with c.loop(storage.groups) as part:
                    start = c.at(header, c.add(c.mul(part, storage.group), storage.header))
                    group(header, start, c.add(c.mul(block, storage.groups), part))
        else:
            with c.loop(record.groups) as number:
                group(place, c.at(place, c.mul(number, storage.group)), number)
        for r in range(rows):
            out = c.at(y, c.add(c.mul(record.y_stride, r), c.mul(panel, 4 * PANEL)))
            out = c.b.select(c.compare(count, ">", r), out, nowhere) if r else out
            for column, totals in zip(columns, sums, strict=True):
                bias = c.load(record.bias, c.add(c.mul(panel, 4 * PANEL), 4 * column), F32, lanes)
                c.store(c.b.fadd(c.get(totals[r]), bias), out, 4 * column)
    return c.done()


def _add_group(c: Code, storage: Storage, weights: QuantisedGroup, xs: list[Value], totals: list[Value]) -> None:
    """Each row's total gains a group: scale * d * sum of products, then least * (d * sum of bytes)."""
    lanes = c.machine.lanes
    vector = ir.VectorType(F32, lanes) if lanes > 1 else F32
    products = IntegerProducts(c, weights.words, BITS[storage.name], lanes)
    share = _DWORDS // len(weights.scales)
    for x, total in zip(xs, totals, strict=True):
        d = c.repeated(c.load(x, SCALE, F32), lanes)
        value = c.get(total)
        for part, scale in enumerate(weights.scales):
            start = c.vector(I32, 0, lanes)
            if storage.name in MIDDLE:
                start = c.repeated(c.load(x, STARTS[part], I32), lanes)
            whole = products.sum(x, part * share, (part + 1) * share, start)
            value = c.fma(c.b.fmul(scale, d), c.b.sitofp(whole, vector), value)
        if weights.least is not None:
            value = c.fma(weights.least, c.repeated(c.load(x, SCALED_SUM, F32), lanes), value)
        c.put(value, total)
        c.keep_order([total])

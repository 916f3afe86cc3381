"""Linear layers of many rows on machines with few registers: weights are widened into the cache, for tiles of rows."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from services.generation.target.canonical.kernels.code import F32, I64, POINTER, Code, calling
from services.generation.target.canonical.kernels.linear.linear_layout import (
    LINE,
    PER_BLOCK,
    copy_block,
    linear_part,
    panel_bytes,
)
from services.generation.target.canonical.kernels.linear.widening import STEP, Widening, block_place
from services.generation.target.canonical.kernels.machine import Machine
from services.generation.target.canonical.kernels.storages import GROUP, PANEL, Storage

_TOGETHER = 4  # blocks whose x is kept in the second-level cache
_MOST_TILED = 256  # rows of a turn
_TALLEST = 6  # rows of a tile
_AHEAD = 8192  # bytes of weights that are fetched ahead


def scratch_bytes() -> int:
    """Of one member."""
    return LINE * (PANEL + _MOST_TILED * _TOGETHER)


def _widen(module: ir.Module, machine: Machine, storage: Storage) -> Any:
    """widen(to, header, group, count): groups of one panel as float32 [inputs][PANEL]."""
    c = Code(module, machine, "widen", (POINTER, POINTER, POINTER, I64))
    to, header, group0, count = c.arguments
    with c.loop(count) as group:
        place, out = c.at(group0, c.mul(group, storage.group)), c.at(to, c.mul(group, 4 * GROUP * PANEL))
        for line in range(0, storage.group, 64):
            c.prefetch(place, _AHEAD + line)
        for column in range(0, PANEL, machine.lanes):
            wide = Widening(c, storage, header, place, column, machine.lanes)
            with c.loop(GROUP // STEP) as step:
                wide.begin(step)
                now = c.at(out, c.mul(step, 4 * STEP * PANEL))
                for k in range(STEP):
                    c.store(wide.at(k), now, 4 * (k * PANEL + column))
    return c.done()


def widen_function(module: ir.Module, machine: Machine, storage: Storage) -> Any:
    """The module's `widen`, made where it has none yet."""
    return module.globals.get("widen") or _widen(module, machine, storage)


def _tile_vectors(machine: Machine, rows: int) -> int:
    """Vectors of columns side by side in a tile: as many sums as the registers hold beside weights and factors, since
    each sum waits for its last fma.
    """
    sums = 12 if machine.registers == 16 else 24
    return min(PANEL // machine.lanes, 1 << ((sums // rows).bit_length() - 1))


def _tile(module: ir.Module, machine: Machine, rows: int) -> Any:
    """tile(weights, count, x, y, y_stride, is_first, bias): y of so many rows of a panel gains one block.

    weights float32 [count][PANEL]; x [rows][BLOCK]; `bias` is 0 where this is not the last block.
    """
    c = Code(module, machine, f"tile_{rows}", (POINTER, I64, POINTER, POINTER, I64, I64, POINTER))
    weights, count, x, y, y_stride, first, bias = c.arguments
    b, lanes = c.b, machine.lanes
    vector, zero = (ir.VectorType(F32, lanes) if lanes > 1 else F32), c.vector(F32, 0.0, lanes)
    width = _tile_vectors(machine, rows) * lanes
    is_first, is_last = c.compare(first, "!=", 0), b.icmp_unsigned("!=", b.ptrtoint(bias, I64), c.i(0))
    with c.loop(PANEL // width) as part:
        left = c.mul(part, 4 * width)
        columns = range(0, width, lanes)
        sums = [[c.variable(vector, zero) for _ in columns] for _ in range(rows)]
        unroll = 4
        with c.loop(c.div(count, unroll)) as turn:
            line = c.at(c.at(weights, left), c.mul(turn, 4 * PANEL * unroll))
            now = c.at(x, c.mul(turn, 4 * unroll))
            for k in range(unroll):
                ws = [c.load(line, 4 * (k * PANEL + column), F32, lanes) for column in columns]
                for r in range(rows):
                    factor = c.repeated(c.load(now, LINE * r + 4 * k, F32), lanes)
                    for w, total in zip(ws, sums[r], strict=True):
                        c.put(c.fma(factor, w, c.get(total)), total)
                c.keep_order([total for row in sums for total in row])
        outs = [c.at(c.at(y, left), c.mul(y_stride, r)) for r in range(rows)]
        for out, row in zip(outs, sums, strict=True):
            for column, total in zip(columns, row, strict=True):
                before = b.select(is_first, zero, c.load(out, 4 * column, F32, lanes))
                c.store(b.fadd(before, c.get(total)), out, 4 * column)
        with c.when(is_last):
            for column in columns:
                more = c.load(c.at(bias, left), 4 * column, F32, lanes)
                for out in outs:
                    c.store(b.fadd(c.load(out, 4 * column, F32, lanes), more), out, 4 * column)
    return c.done()


def tiled(module: ir.Module, machine: Machine, storage: Storage) -> Any:
    """Panels [first, last) for any number of rows.

    x of up to _MOST_TILED rows and _TOGETHER blocks is copied side by side, which the second-level cache holds; then
    each panel's weights of a block are widened into the first-level cache, and tiles of rows go through them, all of
    nearly the same height.
    """
    tiles = {rows: _tile(module, machine, rows) for rows in range(1, _TALLEST + 1)}
    widen = widen_function(module, machine, storage)
    c, record, all_rows, scratch, first, last = linear_part(module, machine, "tiled")
    blocks = c.ceil_div(record.groups, PER_BLOCK)
    x_place = c.at(scratch, LINE * PANEL)
    size = panel_bytes(c, record, storage)
    null = ir.Constant(POINTER, None)
    with c.loop(all_rows, step=_MOST_TILED) as begin:
        rows = c.smaller(c.sub(all_rows, begin), _MOST_TILED)
        turns = c.ceil_div(rows, _TALLEST)
        height = c.div(c.sub(c.add(rows, turns), 1), turns)
        y = c.at(record.y, c.mul(begin, record.y_stride))
        with c.loop(blocks, step=_TOGETHER) as start:
            some = c.smaller(c.sub(blocks, start), _TOGETHER)
            with c.loop(some) as number:
                block = c.add(start, number)
                source = c.at(c.at(record.x, c.mul(begin, record.x_stride)), c.mul(block, LINE))
                copy_block(c, record, block, source, c.at(x_place, c.mul(number, LINE * _MOST_TILED)), rows)
            with c.loop(last, first) as panel, c.loop(some) as number:
                block = c.add(start, number)
                count = c.smaller(c.sub(record.groups, c.mul(block, PER_BLOCK)), PER_BLOCK)
                place = c.at(record.weights, c.mul(panel, size))
                header, start = block_place(c, storage, place, block)
                if storage.name == "float32":
                    weights = start
                else:
                    weights = scratch
                    c.call(widen, scratch, header, start, count)
                x, offset = c.at(x_place, c.mul(number, LINE * _MOST_TILED)), c.mul(panel, 4 * PANEL)
                is_first = c.b.zext(c.compare(block, "==", 0), I64)
                bias = c.b.select(c.compare(c.add(block, 1), "==", blocks), c.at(record.bias, offset), null)
                with c.loop(rows, step=height) as row:
                    arguments = (
                        weights, c.mul(count, GROUP), c.at(x, c.mul(row, LINE)),
                        c.at(c.at(y, offset), c.mul(row, record.y_stride)), record.y_stride, is_first, bias,
                    )  # fmt: skip
                    here = c.smaller(c.sub(rows, row), height)
                    c.choose(here, {r: calling(c, tiles[r], *arguments) for r in tiles})
    return c.done()

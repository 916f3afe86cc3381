"""Linear layers of many rows on machines with few registers: weights are widened into the cache, for tiles of rows."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from services.generation.target.canonical.kernels.code import F32, I64, POINTER, Code, Value, calling
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
_TILE_COLUMNS = 64


def scratch_bytes() -> int:
    """Of one member."""
    return LINE * (_TILE_COLUMNS + _MOST_TILED * _TOGETHER)


def _widen(module: ir.Module, machine: Machine, storage: Storage) -> Any:
    """widen(to, header, group, count): groups of one panel as float32 [inputs][PANEL]."""
    c = Code(module, machine, "widen", (POINTER, POINTER, POINTER, I64))
    to, header, group0, count = c.arguments
    with c.loop(count) as group:
        place, out = c.at(group0, c.mul(group, storage.group)), c.at(to, c.mul(group, 4 * GROUP * PANEL))
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


def _tile_shape(machine: Machine) -> tuple[int, int]:
    """(rows, columns) of a tile: 6 rows of four vectors on AVX-512, of two on AVX2 and NEON."""
    if machine.lanes == 1:
        return 2, 4
    vectors = 4 if machine.registers == 32 else 2
    return 6, min(_TILE_COLUMNS, vectors * machine.lanes)


def _tile(module: ir.Module, machine: Machine, rows: int, columns: int) -> Any:
    """tile(weights, apart, count, x, y, y_stride, is_first, bias): y of rows and columns gains one block.

    weights float32 [columns / PANEL, `apart` bytes from one to the next][count][PANEL]; x [rows][BLOCK]; `bias` is 0
    where this is not the last block.
    """
    kinds = (POINTER, I64, I64, POINTER, POINTER, I64, I64, POINTER)
    c = Code(module, machine, f"tile_{rows}_{columns}", kinds)
    weights, apart, count, x, y, y_stride, first, bias = c.arguments
    b, lanes = c.b, machine.lanes
    vector, zero = (ir.VectorType(F32, lanes) if lanes > 1 else F32), c.vector(F32, 0.0, lanes)
    width = min(columns, PANEL)
    streams = [c.at(weights, c.mul(apart, s)) for s in range(max(1, columns // PANEL))]
    pieces = [(s, column) for s in range(len(streams)) for column in range(0, width, lanes)]
    sums = [[c.variable(vector, zero) for _ in pieces] for _ in range(rows)]
    unroll = 4
    with c.loop(c.div(count, unroll)) as turn:
        w0, now = c.mul(turn, 4 * PANEL * unroll), c.at(x, c.mul(turn, 4 * unroll))
        lines = [c.at(stream, w0) for stream in streams]
        for k in range(unroll):
            ws = [c.load(lines[s], 4 * (k * PANEL + column), F32, lanes) for s, column in pieces]
            for r in range(rows):
                factor = c.repeated(c.load(now, LINE * r + 4 * k, F32), lanes)
                for w, total in zip(ws, sums[r], strict=True):
                    c.put(c.fma(factor, w, c.get(total)), total)
            c.keep_order([total for row in sums for total in row])
    is_first = c.compare(first, "!=", 0)
    outs = [c.at(y, c.mul(y_stride, r)) for r in range(rows)]
    for out, row in zip(outs, sums, strict=True):
        for (s, column), total in zip(pieces, row, strict=True):
            at = 4 * (s * PANEL + column)
            before = b.select(is_first, zero, c.load(out, at, F32, lanes))
            c.store(b.fadd(before, c.get(total)), out, at)
    with c.when(b.icmp_unsigned("!=", b.ptrtoint(bias, I64), c.i(0))):
        for s, column in pieces:
            at = 4 * (s * PANEL + column)
            more = c.load(bias, at, F32, lanes)
            for out in outs:
                c.store(b.fadd(c.load(out, at, F32, lanes), more), out, at)
    return c.done()


def tiled(module: ir.Module, machine: Machine, storage: Storage) -> Any:
    """Panels [first, last) for any number of rows.

    x of up to _MOST_TILED rows and _TOGETHER blocks is copied side by side, which the second-level cache holds; then
    each two panels' weights of a block are widened into the first-level cache, and tiles of rows go through them.
    """
    most, columns = _tile_shape(machine)
    widths = {columns, min(columns, PANEL)}
    tiles = {(r, w): _tile(module, machine, r, w) for w in widths for r in range(1, most + 1)}
    widen = widen_function(module, machine, storage)
    c, record, all_rows, scratch, first, last = linear_part(module, machine, "tiled")
    blocks = c.ceil_div(record.groups, PER_BLOCK)
    x_place = c.at(scratch, LINE * _TILE_COLUMNS)
    size = panel_bytes(c, record, storage)
    null = ir.Constant(POINTER, None)

    def panels(panel: Value, together: int, block: Value, x: Value, y: Value, rows: Value) -> None:
        count = c.smaller(c.sub(record.groups, c.mul(block, PER_BLOCK)), PER_BLOCK)
        for s in range(together):
            place = c.at(record.weights, c.mul(c.add(panel, s), size))
            c.call(widen, c.at(scratch, LINE * PANEL * s), *block_place(c, storage, place, block), count)
        is_first = c.b.zext(c.compare(block, "==", 0), I64)
        is_last = c.compare(c.add(block, 1), "==", blocks)
        width = min(columns, PANEL * together)
        for left in range(0, PANEL * together, width):
            offset = c.add(c.mul(panel, 4 * PANEL), 4 * left)
            bias = c.b.select(is_last, c.at(record.bias, offset), null)
            with c.loop(rows, step=most) as row:
                arguments = (
                    c.at(scratch, 4 * left), c.i(LINE * PANEL), c.mul(count, GROUP), c.at(x, c.mul(row, LINE)),
                    c.at(c.at(y, offset), c.mul(row, record.y_stride)), record.y_stride, is_first, bias,
                )  # fmt: skip
                here = c.smaller(c.sub(rows, row), most)
                cases = {r: calling(c, tiles[r, width], *arguments) for r in range(1, most + 1)}
                c.choose(here, cases)

    def all_blocks(panel: Value, together: int, some: Value, start: Value, y: Value, rows: Value) -> None:
        with c.loop(some) as number:
            x = c.at(x_place, c.mul(number, LINE * _MOST_TILED))
            panels(panel, together, c.add(start, number), x, y, rows)

    with c.loop(all_rows, step=_MOST_TILED) as begin:
        rows = c.smaller(c.sub(all_rows, begin), _MOST_TILED)
        y = c.at(record.y, c.mul(begin, record.y_stride))
        with c.loop(blocks, step=_TOGETHER) as start:
            some = c.smaller(c.sub(blocks, start), _TOGETHER)
            with c.loop(some) as number:
                block = c.add(start, number)
                source = c.at(c.at(record.x, c.mul(begin, record.x_stride)), c.mul(block, LINE))
                copy_block(c, record, block, source, c.at(x_place, c.mul(number, LINE * _MOST_TILED)), rows)
            together = max(1, columns // PANEL)
            turns = c.div(c.sub(last, first), together)
            if together > 1:
                with c.loop(turns) as turn:
                    all_blocks(c.add(first, c.mul(turn, together)), together, some, start, y, rows)
            with c.loop(last, c.add(first, c.mul(turns, together)) if together > 1 else first) as panel:
                all_blocks(panel, 1, some, start, y, rows)
    return c.done()

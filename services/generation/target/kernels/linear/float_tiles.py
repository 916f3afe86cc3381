"""Tiles of float32 products: `direct` widens weights in registers, for a few rows, and for chunks of many rows on
machines with many registers; `tiled` widens them into the cache, for many rows on machines with few registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from llvmlite import ir

from services.generation.target.kernels.code import F32, I64, POINTER, Code, Value
from services.generation.target.kernels.linear.widening import STEP, WIDENINGS, block_place
from services.generation.target.kernels.machine import Machine
from services.generation.target.kernels.records import FIELDS, Words
from services.generation.target.kernels.storages import BLOCK, GROUP, PANEL, Storage

PER_BLOCK = BLOCK // GROUP
LINE = 4 * BLOCK  # bytes of a copied row of x in one block
UNPACKED = 4  # up to this many rows, x is not copied
_AHEAD = 8192  # bytes of weights that are prefetched
_TOGETHER = 4  # blocks whose x is kept in the second-level cache
_MOST_TILED = 256  # rows whose x is kept there
_TALLEST = 6  # rows of a tile


class LinearPart:
    """A function of the kernel under construction: name(record, rows, scratch, first panel, last panel)."""

    def __init__(self, module: ir.Module, machine: Machine, name: str) -> None:
        self.code = Code(module, machine, name, (POINTER, I64, POINTER, I64, I64))
        record, self.rows, self.scratch, self.first, self.last = self.code.arguments
        self.record = Words(self.code, record, FIELDS["linear"], 2)


def copy_x(c: Code, record: Any, x: Value, rows: Value, stride: int, to: Value) -> None:
    """Copy x as [block][stride rows][BLOCK], so that a row's offset is a constant."""
    with c.loop(c.ceil_div(record.groups, PER_BLOCK)) as block:
        source, place = c.at(x, c.mul(block, LINE)), c.at(to, c.mul(block, LINE * stride))
        copy_block(c, record, block, source, place, rows)


def copy_block(c: Code, record: Any, block: Value, source: Value, to: Value, rows: Value) -> None:
    """Copy one block of x, a line for each row."""
    count = c.smaller(c.sub(record.groups, c.mul(block, PER_BLOCK)), PER_BLOCK)
    with c.loop(rows) as row:
        line, place = c.at(source, c.mul(row, record.x_stride)), c.at(to, c.mul(row, LINE))
        with c.loop(count) as group:
            at = c.mul(group, 4 * GROUP)
            for half in (0, 64):
                c.store(c.load(c.at(line, at), half, F32, 16), c.at(place, at), half)


def panel_bytes(c: Code, record: Any, storage: Storage) -> Value:
    size = c.mul(record.groups, storage.group)
    if not storage.header:
        return size
    return c.add(size, c.mul(c.div(record.groups, storage.groups), storage.header))


@dataclass(frozen=True, slots=True)
class _Direct:
    """Values in a direct kernel. x of more than UNPACKED rows was copied by `copy_x`."""

    code: Code
    storage: Storage
    rows: int
    record: Any
    x: Value
    y: Value
    nowhere: Value
    count: Value

    def x_rows(self, block: Value) -> list[Value]:
        """The address of each row's x in a block."""
        c = self.code
        if self.rows > UNPACKED:
            place = c.at(self.x, c.mul(block, LINE * self.rows))
            return [c.at(place, LINE * r) for r in range(self.rows)]
        place = c.at(self.x, c.mul(block, LINE))
        return [c.at(place, c.mul(self.record.x_stride, r)) for r in range(self.rows)]

    def outs(self, panel: Value) -> list[Value]:
        """The address of each row's y in a panel; `nowhere` for surplus rows."""
        c = self.code
        place = c.at(self.y, c.mul(panel, 4 * PANEL))
        outs = [c.at(place, c.mul(self.record.y_stride, r)) for r in range(self.rows)]
        return [
            c.b.select(c.compare(self.count, ">", r), out, self.nowhere) if r else out for r, out in enumerate(outs)
        ]

    def add_block(
        self, panel: Value, block: Value, blocks: Value, sums: list[list[Value]], pieces: list[tuple[int, int]],
        outs: list[Value],
    ) -> None:  # fmt: skip
        """y = y + sums, from +0 in the first block; in the last block + bias."""
        c, b, lanes = self.code, self.code.b, self.code.machine.lanes
        zero = c.vector(F32, 0.0, lanes)
        is_first, is_last = c.compare(block, "==", 0), c.compare(c.add(block, 1), "==", blocks)
        bias = c.at(self.record.bias, c.mul(panel, 4 * PANEL))
        for row, out in zip(sums, outs, strict=True):
            for (s, column), total in zip(pieces, row, strict=True):
                at = 4 * (s * PANEL + column)
                before = b.select(is_first, zero, c.load(out, at, F32, lanes))
                c.store(b.fadd(before, c.get(total)), out, at)
        with c.when(is_last):
            for s, column in pieces:
                at = 4 * (s * PANEL + column)
                more = c.load(bias, at, F32, lanes)
                for out in outs:
                    c.store(b.fadd(c.load(out, at, F32, lanes), more), out, at)


def direct(module: ir.Module, machine: Machine, storage: Storage, rows: int) -> Any:
    """direct(record, x, y, nowhere, rows, first, last): panels [first, last) for up to `rows` rows."""
    kinds = (POINTER, POINTER, POINTER, POINTER, I64, I64, I64)
    c = Code(module, machine, f"direct_{rows}", kinds)
    record_, x, y, nowhere, count, first, last = c.arguments
    parts = _Direct(c, storage, rows, Words(c, record_, FIELDS["linear"], 2), x, y, nowhere, count)
    columns = _columns_at_once(machine, storage, rows)
    together = max(1, columns // PANEL)
    if together > 1:
        turns = c.div(c.sub(last, first), together)
        with c.loop(turns) as turn:
            panel = c.add(first, c.mul(turn, together))
            _direct_panels(parts, panel, together, range(0, PANEL, machine.lanes))
        first = c.add(first, c.mul(turns, together))
    with c.loop(last, first) as panel:
        width = min(columns, PANEL)
        for left in range(0, PANEL, width):
            _direct_panels(parts, panel, 1, range(left, left + width, machine.lanes))
    return c.done()


def _direct_panels(parts: _Direct, panel: Value, together: int, columns: range) -> None:
    """Some columns of `together` panels, for all inputs."""
    c, record, storage, rows = parts.code, parts.record, parts.storage, parts.rows
    lanes = c.machine.lanes
    size = panel_bytes(c, record, storage)
    place = c.at(record.weights, c.mul(panel, size))
    panels = [c.at(place, c.mul(size, s)) for s in range(together)]
    pieces = [(s, column) for s in range(together) for column in columns]
    blocks = c.ceil_div(record.groups, PER_BLOCK)
    zero = c.vector(F32, 0.0, lanes)
    outs = parts.outs(panel)
    with c.loop(blocks) as block:
        sums = [[c.variable(zero) for _ in pieces] for _ in range(rows)]
        places = [block_place(c, storage, p, block) for p in panels]
        xs = parts.x_rows(block)
        left = c.smaller(c.sub(record.groups, c.mul(block, PER_BLOCK)), PER_BLOCK)
        with c.loop(left) as group:
            groups = [c.at(start, c.mul(group, storage.group)) for _, start in places]
            wide = [WIDENINGS[storage.name](c, storage, places[s][0], groups[s], column, lanes) for s, column in pieces]
            # Each panel is a stream of its own; after its end, the panel after the others is prefetched.
            done = c.b.sub(c.b.ptrtoint(groups[0], I64), c.b.ptrtoint(panels[0], I64))
            over = c.compare(c.add(done, _AHEAD), ">=", size)
            distance = c.b.select(over, c.add(c.mul(size, together - 1), _AHEAD), c.i(_AHEAD))
            with c.loop(GROUP // STEP) as step:
                for w in wide:
                    w.begin(step)
                k0 = c.add(c.mul(group, 4 * GROUP), c.mul(step, 4 * STEP))
                now = [c.at(x, k0) for x in xs]
                if columns[0] == 0:
                    _fetch_ahead(c, storage, groups, step, distance)
                for k in range(STEP):
                    ws = [w.at(k) for w in wide]
                    for r in range(rows):
                        factor = c.repeated(c.load(now[r], 4 * k, F32), lanes)
                        for w, total in zip(ws, sums[r], strict=True):
                            c.put(c.fma(factor, w, c.get(total)), total)
                    if c.machine.registers == 16:
                        c.keep_order([total for row in sums for total in row])
        parts.add_block(panel, block, blocks, sums, pieces, outs)


def _columns_at_once(machine: Machine, storage: Storage, rows: int) -> int:
    """Columns whose sums fit the registers together with the weights, their scales and the factors.

    Each sum waits four cycles for its last fma. If registers are few, enough sums to fill that time matter more than
    scales in registers: these are read from the stack, for which the load units have time.
    """
    if machine.registers == 16 and machine.lanes > 1:
        return (4 if rows == 1 or (rows == 2 and not storage.scales) else 2) * machine.lanes
    spare = 5 if storage.scales else 2
    each = 4 if storage.scales else 2  # registers of a vector of columns, without its sums
    vectors = max(1, (machine.registers - spare) // (rows + each))
    fits = 1 << min(2, vectors.bit_length() - 1)
    return min(2 * PANEL, fits * machine.lanes)


def _fetch_ahead(c: Code, storage: Storage, groups: list[Value], step: Value, distance: Value) -> None:
    lines = -(-storage.group // 64)
    each = -(-lines // (GROUP // STEP))
    for group in groups:
        near = c.at(c.at(group, distance), c.mul(step, 64 * each))
        for line in range(each):
            c.prefetch(near, 64 * line)


def tiled_scratch_bytes() -> int:
    """Bytes of one member's scratch."""
    return LINE * (PANEL + _MOST_TILED * _TOGETHER)


def _widen(module: ir.Module, machine: Machine, storage: Storage) -> Any:
    """widen(to, header, group, count): write groups of one panel as float32 [inputs][PANEL]."""
    c = Code(module, machine, "widen", (POINTER, POINTER, POINTER, I64))
    to, header, group0, count = c.arguments
    with c.loop(count) as group:
        place, out = c.at(group0, c.mul(group, storage.group)), c.at(to, c.mul(group, 4 * GROUP * PANEL))
        for line in range(0, storage.group, 64):
            c.prefetch(place, _AHEAD + line)
        for column in range(0, PANEL, machine.lanes):
            wide = WIDENINGS[storage.name](c, storage, header, place, column, machine.lanes)
            with c.loop(GROUP // STEP) as step:
                wide.begin(step)
                now = c.at(out, c.mul(step, 4 * STEP * PANEL))
                for k in range(STEP):
                    c.store(wide.at(k), now, 4 * (k * PANEL + column))
    return c.done()


def widen_function(module: ir.Module, machine: Machine, storage: Storage) -> Any:
    """The module's function `widen`, which is added if it is missing."""
    return module.globals.get("widen") or _widen(module, machine, storage)


def _tile(module: ir.Module, machine: Machine, rows: int) -> Any:
    """tile(weights, count, x, y, y_stride, is_first, bias): add one block to y of `rows` rows of a panel.

    weights float32 [count][PANEL]; x [rows][BLOCK]; `bias` is null except in the last block.
    """
    c = Code(module, machine, f"tile_{rows}", (POINTER, I64, POINTER, POINTER, I64, I64, POINTER))
    weights, count, x, y, y_stride, first, bias = c.arguments
    b, lanes = c.b, machine.lanes
    zero = c.vector(F32, 0.0, lanes)
    width = machine.vectors(rows, PANEL) * lanes  # each sum waits for its last fma
    is_first, is_last = c.compare(first, "!=", 0), b.icmp_unsigned("!=", b.ptrtoint(bias, I64), c.i(0))
    with c.loop(PANEL // width) as part:
        left = c.mul(part, 4 * width)
        columns = range(0, width, lanes)
        sums = [[c.variable(zero) for _ in columns] for _ in range(rows)]
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

    x of up to _MOST_TILED rows and _TOGETHER blocks is copied and then in the second-level cache. Each panel's weights
    of a block are widened into the first-level cache and multiplied with tiles of rows of nearly equal height.
    """
    tiles = {rows: _tile(module, machine, rows) for rows in range(1, _TALLEST + 1)}
    widen = widen_function(module, machine, storage)
    part = LinearPart(module, machine, "tiled")
    c, record, scratch = part.code, part.record, part.scratch
    blocks = c.ceil_div(record.groups, PER_BLOCK)
    x_place = c.at(scratch, LINE * PANEL)
    size = panel_bytes(c, record, storage)
    null = ir.Constant(POINTER, None)
    with c.loop(part.rows, step=_MOST_TILED) as begin:
        rows = c.smaller(c.sub(part.rows, begin), _MOST_TILED)
        height = c.even(rows, _TALLEST)
        y = c.at(record.y, c.mul(begin, record.y_stride))
        with c.loop(blocks, step=_TOGETHER) as start:
            some = c.smaller(c.sub(blocks, start), _TOGETHER)
            with c.loop(some) as number:
                block = c.add(start, number)
                source = c.at(c.at(record.x, c.mul(begin, record.x_stride)), c.mul(block, LINE))
                copy_block(c, record, block, source, c.at(x_place, c.mul(number, LINE * _MOST_TILED)), rows)
            with c.loop(part.last, part.first) as panel, c.loop(some) as number:
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
                    c.choose(here, {r: partial(c.call, tile, *arguments) for r, tile in tiles.items()})
    return c.done()

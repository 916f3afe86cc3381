"""Linear layers, y = x W^T + b: `docs/numerics.md`, Linear. One kernel for each storage of the weights.

The sum over a block of 128 inputs is one chain of fma; blocks are added in ascending order, then the bias. Lanes run
across columns, tiles across rows and columns, members of the team across panels; none of them along a sum. So a row's
bits depend neither on the number of rows nor on who computes it.

Weights are widened in registers and used at once for up to 24 rows. More rows go through each panel in chunks of 16, by
when its weights are in a cache. Machines with few registers would widen too often: there, a block of 64 columns is
widened into the first-level cache, and all rows go through it in tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from services.generation.target.canonical.code import F32, I64, POINTER, Code, Value, calling
from services.generation.target.canonical.machine import Machine
from services.generation.target.canonical.records import FIELDS, Kernel, Words
from services.generation.target.canonical.storages import BLOCK, GROUP, PANEL, Storage
from services.generation.target.canonical.widening import STEP, Widening, block_place

_UNPACKED = 4  # rows up to which x is read where it lies
_DIRECT = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24)  # rows that direct kernels are compiled for
_DIRECT_NARROW = (1, 2, 3, 4, 6)  # the same for machines of 16 registers or few lanes
_AHEAD = 8192  # bytes of weights that direct kernels fetch ahead
_CHUNK = 16  # rows of which a panel's weights are widened once, where there are many
_X_BYTES = 3 << 17  # of x that go through the panels together: most of a second-level cache
_NOWHERE = 1024  # bytes at the end of the scratch for rows that nobody asked for
_TOGETHER = 4  # blocks whose x a tiled pass keeps in the second-level cache
_MOST_TILED = 256  # rows of one of its turns
_TILE_COLUMNS = 64
_PER_BLOCK = BLOCK // GROUP
_LINE = 4 * BLOCK  # bytes of a row of x in one block, where it is copied


def _is_wide(machine: Machine) -> bool:
    """Whether the registers hold the sums of _CHUNK rows."""
    return machine.registers * machine.lanes >= 512


def scratch_bytes(inputs: int) -> int:
    """Of one member, for a layer of so many inputs."""
    line = -(-inputs // BLOCK) * _LINE
    tiled = _LINE * (_TILE_COLUMNS + _MOST_TILED * _TOGETHER)
    return max(line * max(_DIRECT[-1], _CHUNK), _X_BYTES + line * _CHUNK, tiled) + _NOWHERE


def build(module: ir.Module, machine: Machine, storage: Storage) -> None:
    """Add the kernel `linear` to a module."""
    counts = _DIRECT if _is_wide(machine) else _DIRECT_NARROW
    direct = {rows: _direct(module, machine, storage, rows) for rows in counts}
    many = _chunked(module, machine, direct) if _is_wide(machine) else _tiled(module, machine, storage)
    kernel = Kernel(module, machine, "linear")
    c, record = kernel.code, kernel.record
    first, last = kernel.share(c.div(record.panels, record.unit))
    first, last = c.mul(first, record.unit), c.mul(last, record.unit)
    rows, scratch = kernel.rows(), kernel.scratch()
    nowhere = c.at(scratch, c.sub(record.scratch_size, _NOWHERE))

    def run(count: int) -> Callable[[], None]:
        def case() -> None:
            x = scratch if count > _UNPACKED else record.x
            if count > _UNPACKED:
                _copy_x(c, record, record.x, rows, count, scratch)
            c.call(direct[count], c.arguments[0], x, record.y, nowhere, rows, first, last)

        return case

    cases = {r: run(next(count for count in counts if count >= r)) for r in range(1, counts[-1] + 1)}
    c.choose(rows, cases)
    with c.when(c.compare(rows, ">", counts[-1])):
        c.call(many, c.arguments[0], rows, scratch, first, last)
    c.done()


def _chunked(module: ir.Module, machine: Machine, direct: dict[int, Any]) -> Any:
    """Panels [first, last) for many rows: as many rows as the second-level cache holds go through a panel in chunks."""
    c, record, rows, scratch, first, last = _function(module, machine, "chunked")
    nowhere = c.at(scratch, c.sub(record.scratch_size, _NOWHERE))
    line = c.mul(c.ceil_div(record.groups, _PER_BLOCK), _LINE)
    chunk_bytes = c.mul(line, _CHUNK)
    together = c.mul(c.larger(c.div(c.i(_X_BYTES), chunk_bytes), 1), _CHUNK)
    variants = [count for count in direct if _UNPACKED < count <= _CHUNK]
    with c.loop(rows, step=together) as begin:
        some = c.smaller(c.sub(rows, begin), together)

        def place(row: Value, begin: Value = begin) -> tuple[Value, Value]:
            """Where the chunk that begins with a row has its x, and its y."""
            x = c.at(scratch, c.mul(c.div(row, _CHUNK), chunk_bytes))
            return x, c.at(record.y, c.mul(c.add(begin, row), record.y_stride))

        def cases(row: Value, work: Callable[[int], Callable[[], None]], some: Value = some) -> None:
            count = c.smaller(c.sub(some, row), _CHUNK)
            c.choose(count, {r: work(next(v for v in variants if v >= r)) for r in range(1, _CHUNK + 1)})

        with c.loop(some, step=_CHUNK) as row:
            source = c.at(record.x, c.mul(c.add(begin, row), record.x_stride))
            count = c.smaller(c.sub(some, row), _CHUNK)

            def copied(stride: int, source: Value = source, count: Value = count, row: Value = row) -> Any:
                return lambda: _copy_x(c, record, source, count, stride, place(row)[0])

            cases(row, copied)
        with c.loop(last, first, 2) as panel, c.loop(some, step=_CHUNK) as row:
            end, count = c.smaller(c.add(panel, 2), last), c.smaller(c.sub(some, row), _CHUNK)

            def computed(
                stride: int, row: Value = row, count: Value = count, panel: Value = panel, end: Value = end
            ) -> Any:
                return calling(c, direct[stride], c.arguments[0], *place(row), nowhere, count, panel, end)

            cases(row, computed)
    return c.done()


def _function(module: ir.Module, machine: Machine, name: str) -> tuple[Code, Any, Value, Value, Value, Value]:
    """A part of the kernel: (code, record, rows, scratch, first panel, last panel)."""
    c = Code(module, machine, name, (POINTER, I64, POINTER, I64, I64))
    record, rows, scratch, first, last = c.arguments
    return c, Words(c, record, FIELDS["linear"], 2), rows, scratch, first, last


def _copy_x(c: Code, record: Any, x: Value, rows: Value, stride: int, to: Value) -> None:
    """x as [block][stride rows][BLOCK], so that a row's place is a constant."""
    with c.loop(c.ceil_div(record.groups, _PER_BLOCK)) as block:
        source, place = c.at(x, c.mul(block, _LINE)), c.at(to, c.mul(block, _LINE * stride))
        _copy_block(c, record, block, source, place, rows)


def _copy_block(c: Code, record: Any, block: Value, source: Value, to: Value, rows: Value) -> None:
    """One block of x, a line for each row."""
    count = c.smaller(c.sub(record.groups, c.mul(block, _PER_BLOCK)), _PER_BLOCK)
    with c.loop(rows) as row:
        line, place = c.at(source, c.mul(row, record.x_stride)), c.at(to, c.mul(row, _LINE))
        with c.loop(count) as group:
            at = c.mul(group, 4 * GROUP)
            for half in (0, 64):
                c.store(c.load(c.at(line, at), half, F32, 16), c.at(place, at), half)


def _columns_at_once(machine: Machine, storage: Storage, rows: int) -> int:
    """Columns whose sums fit the registers, beside the weights, their scales and the factors."""
    spare = 5 if storage.quantised else 2
    each = 4 if storage.quantised else 2  # registers of a vector of columns, without its sums
    vectors = max(1, (machine.registers - spare) // (rows + each))
    fits = 1 << min(2, vectors.bit_length() - 1)
    return min(2 * PANEL, fits * machine.lanes)


@dataclass(frozen=True, slots=True)
class _Direct:
    """What the parts of a direct kernel share. x of up to _UNPACKED rows lies in lines, else as `_copy_x` leaves it."""

    code: Code
    storage: Storage
    rows: int
    record: Any
    x: Value
    y: Value
    nowhere: Value
    count: Value

    def x_rows(self, block: Value) -> list[Value]:
        """Where each row's x of a block begins."""
        c = self.code
        if self.rows > _UNPACKED:
            place = c.at(self.x, c.mul(block, _LINE * self.rows))
            return [c.at(place, _LINE * r) for r in range(self.rows)]
        place = c.at(self.x, c.mul(block, _LINE))
        return [c.at(place, c.mul(self.record.x_stride, r)) for r in range(self.rows)]

    def outs(self, panel: Value) -> list[Value]:
        """Where each row's y of a panel begins."""
        c = self.code
        place = c.at(self.y, c.mul(panel, 4 * PANEL))
        outs = [c.at(place, c.mul(self.record.y_stride, r)) for r in range(self.rows)]
        return [
            c.b.select(c.compare(self.count, ">", r), out, self.nowhere) if r else out for r, out in enumerate(outs)
        ]


def _direct(module: ir.Module, machine: Machine, storage: Storage, rows: int) -> Any:
    """direct(record, x, y, nowhere, rows, first, last): panels [first, last) for up to so many rows."""
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
    vector = ir.VectorType(F32, lanes) if lanes > 1 else F32
    panel_bytes = _panel_bytes(c, record, storage)
    place = c.at(record.weights, c.mul(panel, panel_bytes))
    panels = [c.at(place, c.mul(panel_bytes, s)) for s in range(together)]
    pieces = [(s, column) for s in range(together) for column in columns]
    blocks = c.ceil_div(record.groups, _PER_BLOCK)
    zero = c.vector(F32, 0.0, lanes)
    outs = parts.outs(panel)
    with c.loop(blocks) as block:
        sums = [[c.variable(vector, zero) for _ in pieces] for _ in range(rows)]
        places = [block_place(c, storage, p, block) for p in panels]
        xs = parts.x_rows(block)
        left = c.smaller(c.sub(record.groups, c.mul(block, _PER_BLOCK)), _PER_BLOCK)
        with c.loop(left) as group:
            groups = [c.at(start, c.mul(group, storage.group)) for _, start in places]
            wide = [Widening(c, storage, places[s][0], groups[s], column, lanes) for s, column in pieces]
            # Panels side by side are streams of their own: the end of one is followed by the panel after the others.
            done = c.b.sub(c.b.ptrtoint(groups[0], I64), c.b.ptrtoint(panels[0], I64))
            over = c.compare(c.add(done, _AHEAD), ">=", panel_bytes)
            distance = c.b.select(over, c.add(c.mul(panel_bytes, together - 1), _AHEAD), c.i(_AHEAD))
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
        _add_block(c, record, panel, block, blocks, sums, pieces, outs)


def _panel_bytes(c: Code, record: Any, storage: Storage) -> Value:
    size = c.mul(record.groups, storage.group)
    if not storage.header:
        return size
    return c.add(size, c.mul(c.div(record.groups, storage.groups), storage.header))


def _fetch_ahead(c: Code, storage: Storage, groups: list[Value], step: Value, distance: Value) -> None:
    lines = -(-storage.group // 64)
    each = -(-lines // (GROUP // STEP))
    for group in groups:
        near = c.at(c.at(group, distance), c.mul(step, 64 * each))
        for line in range(each):
            c.prefetch(near, 64 * line)


def _add_block(
    c: Code, record: Any, panel: Value, block: Value, blocks: Value, sums: list[list[Value]],
    pieces: list[tuple[int, int]], outs: list[Value],
) -> None:  # fmt: skip
    """y = y + part, from +0 in the first block; in the last block + bias."""
    b, lanes = c.b, c.machine.lanes
    zero = c.vector(F32, 0.0, lanes)
    is_first, is_last = c.compare(block, "==", 0), c.compare(c.add(block, 1), "==", blocks)
    bias = c.at(record.bias, c.mul(panel, 4 * PANEL))
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
                factor = c.repeated(c.load(now, _LINE * r + 4 * k, F32), lanes)
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


def _tiled(module: ir.Module, machine: Machine, storage: Storage) -> Any:
    """Panels [first, last) for any number of rows.

    x of up to _MOST_TILED rows and _TOGETHER blocks is copied side by side, which the second-level cache holds; then
    each two panels' weights of a block are widened into the first-level cache, and tiles of rows go through them.
    """
    most, columns = _tile_shape(machine)
    widths = {columns, min(columns, PANEL)}
    tiles = {(r, w): _tile(module, machine, r, w) for w in widths for r in range(1, most + 1)}
    widen = widen_function(module, machine, storage)
    c, record, all_rows, scratch, first, last = _function(module, machine, "tiled")
    blocks = c.ceil_div(record.groups, _PER_BLOCK)
    x_place = c.at(scratch, _LINE * _TILE_COLUMNS)
    panel_bytes = _panel_bytes(c, record, storage)
    null = ir.Constant(POINTER, None)

    def panels(panel: Value, together: int, block: Value, x: Value, y: Value, rows: Value) -> None:
        count = c.smaller(c.sub(record.groups, c.mul(block, _PER_BLOCK)), _PER_BLOCK)
        for s in range(together):
            place = c.at(record.weights, c.mul(c.add(panel, s), panel_bytes))
            c.call(widen, c.at(scratch, _LINE * PANEL * s), *block_place(c, storage, place, block), count)
        is_first = c.b.zext(c.compare(block, "==", 0), I64)
        is_last = c.compare(c.add(block, 1), "==", blocks)
        width = min(columns, PANEL * together)
        for left in range(0, PANEL * together, width):
            offset = c.add(c.mul(panel, 4 * PANEL), 4 * left)
            bias = c.b.select(is_last, c.at(record.bias, offset), null)
            with c.loop(rows, step=most) as row:
                arguments = (
                    c.at(scratch, 4 * left), c.i(_LINE * PANEL), c.mul(count, GROUP), c.at(x, c.mul(row, _LINE)),
                    c.at(c.at(y, offset), c.mul(row, record.y_stride)), record.y_stride, is_first, bias,
                )  # fmt: skip
                here = c.smaller(c.sub(rows, row), most)
                cases = {r: calling(c, tiles[r, width], *arguments) for r in range(1, most + 1)}
                c.choose(here, cases)

    def all_blocks(panel: Value, together: int, some: Value, start: Value, y: Value, rows: Value) -> None:
        with c.loop(some) as number:
            x = c.at(x_place, c.mul(number, _LINE * _MOST_TILED))
            panels(panel, together, c.add(start, number), x, y, rows)

    with c.loop(all_rows, step=_MOST_TILED) as begin:
        rows = c.smaller(c.sub(all_rows, begin), _MOST_TILED)
        y = c.at(record.y, c.mul(begin, record.y_stride))
        with c.loop(blocks, step=_TOGETHER) as start:
            some = c.smaller(c.sub(blocks, start), _TOGETHER)
            with c.loop(some) as number:
                block = c.add(start, number)
                source = c.at(c.at(record.x, c.mul(begin, record.x_stride)), c.mul(block, _LINE))
                _copy_block(c, record, block, source, c.at(x_place, c.mul(number, _LINE * _MOST_TILED)), rows)
            together = max(1, columns // PANEL)
            turns = c.div(c.sub(last, first), together)
            if together > 1:
                with c.loop(turns) as turn:
                    all_blocks(c.add(first, c.mul(turn, together)), together, some, start, y, rows)
            with c.loop(last, c.add(first, c.mul(turns, together)) if together > 1 else first) as panel:
                all_blocks(panel, 1, some, start, y, rows)
    return c.done()

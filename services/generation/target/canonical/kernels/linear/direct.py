"""Linear layers of a few rows: weights are widened in registers and used at once for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from services.generation.target.canonical.kernels.code import F32, I64, POINTER, Code, Value
from services.generation.target.canonical.kernels.linear.linear_layout import LINE, PER_BLOCK, panel_bytes
from services.generation.target.canonical.kernels.linear.widening import STEP, Widening, block_place
from services.generation.target.canonical.kernels.machine import Machine
from services.generation.target.canonical.kernels.records import FIELDS, Words
from services.generation.target.canonical.kernels.storages import GROUP, PANEL, Storage

UNPACKED = 4  # rows up to which x is read where it lies
_AHEAD = 8192  # bytes of weights that are fetched ahead


@dataclass(frozen=True, slots=True)
class _Direct:
    """The state of a direct kernel's parts. x of up to UNPACKED rows lies in lines, else as `copy_x` leaves it."""

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
        if self.rows > UNPACKED:
            place = c.at(self.x, c.mul(block, LINE * self.rows))
            return [c.at(place, LINE * r) for r in range(self.rows)]
        place = c.at(self.x, c.mul(block, LINE))
        return [c.at(place, c.mul(self.record.x_stride, r)) for r in range(self.rows)]

    def outs(self, panel: Value) -> list[Value]:
        """Where each row's y of a panel begins."""
        c = self.code
        place = c.at(self.y, c.mul(panel, 4 * PANEL))
        outs = [c.at(place, c.mul(self.record.y_stride, r)) for r in range(self.rows)]
        return [
            c.b.select(c.compare(self.count, ">", r), out, self.nowhere) if r else out for r, out in enumerate(outs)
        ]


def direct(module: ir.Module, machine: Machine, storage: Storage, rows: int) -> Any:
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
    size = panel_bytes(c, record, storage)
    place = c.at(record.weights, c.mul(panel, size))
    panels = [c.at(place, c.mul(size, s)) for s in range(together)]
    pieces = [(s, column) for s in range(together) for column in columns]
    blocks = c.ceil_div(record.groups, PER_BLOCK)
    zero = c.vector(F32, 0.0, lanes)
    outs = parts.outs(panel)
    with c.loop(blocks) as block:
        sums = [[c.variable(vector, zero) for _ in pieces] for _ in range(rows)]
        places = [block_place(c, storage, p, block) for p in panels]
        xs = parts.x_rows(block)
        left = c.smaller(c.sub(record.groups, c.mul(block, PER_BLOCK)), PER_BLOCK)
        with c.loop(left) as group:
            groups = [c.at(start, c.mul(group, storage.group)) for _, start in places]
            wide = [Widening(c, storage, places[s][0], groups[s], column, lanes) for s, column in pieces]
            # Panels side by side are streams of their own: the end of one is followed by the panel after the others.
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
        _add_block(c, record, panel, block, blocks, sums, pieces, outs)


def _columns_at_once(machine: Machine, storage: Storage, rows: int) -> int:
    """Columns whose sums fit the registers, beside the weights, their scales and the factors.

    Each sum waits four cycles for its last fma. Where registers are few, enough sums to fill that time count for more
    than scales in registers: those are read from the stack, which the load units have time for.
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

"""The kernel that packs published blocks into panels: every bit of a column's block has a place there (`storages`)."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from services.generation.target.kernels.code import I1, I8, I16, I32, I64, POINTER, Code, Value
from services.generation.target.kernels.machine import Machine
from services.generation.target.kernels.storages import PANEL, ZERO, Storage

_COLUMNS = 8  # of a vector
_WINDOW = 8  # bytes that a column loads at a time
_TYPES = {8: I8, 16: I16, 32: I32}


def build(module: ir.Module, machine: Machine, storage: Storage) -> None:
    """Add `pack(rows, panels, blocks, count, infinite)`: pack `count` panels of rows with `blocks` blocks each.

    rows [count, PANEL]: addresses. infinite [_COLUMNS]: bytes that are not zero if a value, or a scale, is not finite.
    """
    c = Code(module, machine, "pack", (POINTER, POINTER, I64, I64, POINTER), exported=True)
    rows, panels, blocks, count, found = c.arguments
    parts, size = storage.block.numbers(storage), storage.header + storage.groups * storage.group
    block = (max(place for part in parts for place in part.bits) + 1) // 8  # bytes, all of which are read
    infinite = c.variable(c.vector(I1, 0, _COLUMNS))
    with c.loop(c.mul(count, blocks)) as number, c.loop(PANEL, step=_COLUMNS) as first:
        panel, at = c.div(number, blocks), c.mul(c.rem(number, blocks), block)
        table = c.at(rows, c.mul(c.add(c.mul(panel, PANEL), first), 8))
        columns = [c.at(c.address(table, lane), at) for lane in range(_COLUMNS)]
        windows: dict[int, Value] = {}
        place, offset = c.at(panels, c.mul(number, size)), 0
        for part in parts:
            width = len(part.bits)
            value = _gathered(c, columns, windows, part.bits, block)
            for exponent in part.infinite:
                ones = c.vector(I64, exponent, _COLUMNS)
                same = c.b.icmp_unsigned("==", c.b.and_(value, ones), ones)
                c.put(c.b.or_(c.get(infinite), same), infinite)
            value = c.b.xor(value, c.vector(I64, part.inverted, _COLUMNS))
            value = c.b.trunc(value, ir.VectorType(_TYPES[width], _COLUMNS))
            c.store(value, place, c.add(c.mul(first, width // 8), offset), align=1)
            offset += PANEL * width // 8
    c.store(c.b.sext(c.get(infinite), ir.VectorType(I8, _COLUMNS)), found, 0, align=1)
    c.done()


def _gathered(c: Code, columns: Sequence[Value], windows: dict[int, Value], bits: Sequence[int], block: int) -> Value:
    """Numbers of the columns, [_COLUMNS] of i64, from bits of their blocks. `windows`: bytes that were loaded."""
    shifts: dict[tuple[int, int], int] = {}  # masks by the first byte of a window, and the bits to shift to the left
    start = -1
    for place in sorted(set(bits) - {ZERO}):
        if not 0 <= place - 8 * start < 8 * _WINDOW:
            start = min(place // 8, block - _WINDOW)
        bit = place - 8 * start
        key = start, bits.index(place) - bit
        shifts[key] = shifts.get(key, 0) | 1 << bit
    total = c.vector(I64, 0, _COLUMNS)
    for (first, distance), mask in shifts.items():
        if first not in windows:
            windows[first] = _window(c, columns, first)
        moved = c.b.and_(windows[first], c.vector(I64, mask - (mask >> 63 << 64), _COLUMNS))
        amount = c.vector(I64, abs(distance), _COLUMNS)
        total = c.b.or_(total, c.b.shl(moved, amount) if distance > 0 else c.b.lshr(moved, amount))
    return total


def _window(c: Code, columns: Sequence[Value], first: int) -> Value:
    """Eight bytes of each column's block."""
    found = ir.Constant(ir.VectorType(I64, _COLUMNS), ir.Undefined)
    for lane, column in enumerate(columns):
        found = c.b.insert_element(found, c.load(column, first, I64, align=1), ir.Constant(I32, lane))
    return found

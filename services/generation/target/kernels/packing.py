"""The kernel that packs published blocks into panels: every bit of a column's block has a place there (`storages`).

Blocks of GGUF are ggml's block_q8_0, block_q4_K etc.; a block of plain numbers is a group of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from services.generation.target.kernels.code import I1, I8, I16, I32, I64, POINTER, Code, Value
from services.generation.target.kernels.machine import Machine
from services.generation.target.kernels.storages import GROUP, PANEL, ROTATION, Storage, upper_place

_COLUMNS = 8  # of a vector
_WINDOW = 8  # bytes that a column loads at a time
_ZERO = -1  # in place of a bit's place
_TYPES = {8: I8, 16: I16, 32: I32}
_HALF = (0x7C00,)  # the exponent of infinity and NaN
_PLAIN = {"float32": (32, (0x7F800000,)), "bfloat16": (32, (0x7F80, 0x7F800000)), "float16": (16, _HALF)}
_LOW = {"q4_0": 2, "q4_1": 4, "q5_0": 6, "q5_1": 8, "mxfp4": 1}  # bytes before the halves of 32 values
_QUARTERS = {"q4_k": 16, "q5_k": 48}  # bytes before the halves of 256 values


@dataclass(frozen=True, slots=True)
class _Number:
    """A number of each column: the places of its bits in the block, the lowest first; bits that are inverted; exponents
    of values that are not finite.
    """

    bits: tuple[int, ...]
    inverted: int = 0
    infinite: tuple[int, ...] = ()


def build(module: ir.Module, machine: Machine, storage: Storage) -> None:
    """Add `pack(rows, panels, blocks, count, infinite)`: pack `count` panels of rows with `blocks` blocks each.

    rows [count, PANEL]: addresses. infinite [_COLUMNS]: bytes that are not zero if a value, or a scale, is not finite.
    """
    c = Code(module, machine, "pack", (POINTER, POINTER, I64, I64, POINTER), exported=True)
    rows, panels, blocks, count, found = c.arguments
    parts, size = _numbers(storage), storage.header + storage.groups * storage.group
    block = (max(place for part in parts for place in part.bits) + 1) // 8  # bytes, all of which are read
    infinite = c.variable(ir.VectorType(I1, _COLUMNS), c.vector(I1, 0, _COLUMNS))
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
    for place in sorted(set(bits) - {_ZERO}):
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


def _numbers(storage: Storage) -> list[_Number]:
    """The numbers of a header and of its groups, in their order."""
    if storage.name in _PLAIN:
        width, infinite = _PLAIN[storage.name]
        count = 8 * storage.values // PANEL // width
        return [_Number(tuple(range(width * at, width * (at + 1))), 0, infinite) for at in range(count)]
    found = _header(storage.name)
    for group in range(storage.groups):
        found += [*_scales(storage.name, group), *_words(storage, group)]
    return found


def _half(byte: int) -> _Number:
    return _Number(tuple(range(8 * byte, 8 * byte + 16)), 0, _HALF)


def _byte(byte: int, *infinite: int) -> _Number:
    return _Number(tuple(range(8 * byte, 8 * byte + 8)), 0, infinite)


def _header(name: str) -> list[_Number]:
    return {"q4_k": [_half(0), _half(2)], "q5_k": [_half(0), _half(2)], "q6_k": [_half(208)]}.get(name, [])


def _scales(name: str, group: int) -> list[_Number]:
    if name == "mxfp4":  # an exponent of 255 is not a number, and six times those below it may be infinite
        return [_byte(0, 0xFD, 0xFE)]
    if name == "q6_k":
        return [_byte(192 + 2 * group), _byte(193 + 2 * group)]
    if name in _QUARTERS:
        return [_six_bits(group, minimum) for minimum in (0, 4)]
    return [_half(0), _half(2)] if name.endswith("_1") else [_half(0)]


def _six_bits(group: int, minimum: int) -> _Number:
    """A scale, or from byte 4 on a minimum, of six bits (ggml's get_scale_min_k4)."""
    own = 8 * (4 + minimum + group % 4)
    if group < 4:
        return _Number((*range(own, own + 6), _ZERO, _ZERO))
    low = 8 * (12 + group % 4) + minimum
    return _Number((*range(low, low + 4), own + 6, own + 7, _ZERO, _ZERO))


def _words(storage: Storage, group: int) -> list[_Number]:
    """The words of a group's values, then those of their upper bits."""
    name, bits = storage.name, 8 if storage.bits == 8 else 4
    values = range(GROUP * group, GROUP * (group + 1))
    count = 32 // bits
    inverted = sum(1 << (bits * k + bits - 1 + ROTATION[bits]) % 32 for k in range(count)) if bits == 8 else 0

    def word(first: int) -> _Number:
        places = [_ZERO] * 32
        for k, bit in ((k, bit) for k in range(count) for bit in range(bits)):
            places[(bits * k + bit + ROTATION[bits]) % 32] = _low(name, values[first + k]) + bit
        return _Number(tuple(places), inverted)

    def upper(first: int) -> _Number:
        places = [_ZERO] * 32
        for k, bit in ((k, bit) for k in range(32 // storage.upper) for bit in range(storage.upper)):
            places[upper_place(storage.upper, k) + bit] = _upper(name, values[first + k]) + bit
        return _Number(tuple(places))

    uppers = [upper(first) for first in range(0, GROUP, 32 // storage.upper)] if storage.upper else []
    return [*(word(first) for first in range(0, GROUP, count)), *uppers]


def _low(name: str, k: int) -> int:
    """The place of the lowest bit of the k-th value's lower part."""
    if name == "q8_0":
        return 8 * (2 + k)
    if name == "q6_k":
        return 8 * (k // 128 * 64 + k % 64) + 4 * (k % 128 // 64)
    if name in _QUARTERS:
        return 8 * (_QUARTERS[name] + k // 64 * 32 + k % 32) + 4 * (k % 64 // 32)
    return 8 * (_LOW[name] + k % 16) + 4 * (k // 16)


def _upper(name: str, k: int) -> int:
    """The place of the lowest bit of the k-th value's upper part."""
    if name == "q6_k":
        return 8 * (128 + k // 128 * 32 + k % 32) + 2 * (k % 128 // 32)
    if name == "q5_k":
        return 8 * (16 + k % 32) + k // 32
    return (16 if name == "q5_0" else 32) + k

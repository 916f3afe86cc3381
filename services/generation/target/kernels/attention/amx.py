"""Products of a block's bytes by Intel's AMX: up to 16 heads with 16 keys, or 16 columns of values, in one instruction.

It adds the products of a left matrix [16][64] of bytes and a right matrix [64][16], in the cache's order of four
adjacent bytes, to sums [16][16] of int32. All 16 rows are computed; rows after the heads are arbitrary scratch memory,
and their sums are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from services.generation.target.blocks import BLOCK
from services.generation.target.kernels.attention.block import fetch
from services.generation.target.kernels.attention.layout import LINE
from services.generation.target.kernels.code import F32, I8, I16, I32, I64, POINTER, Code, Value
from services.generation.target.kernels.machine import Machine

MOST = 16  # heads
_COLUMNS = 16
_DEPTH, _HALF = 64, 32  # bytes that one instruction multiplies with a column
_BYTES = 64  # of a row of a matrix, or of 16 sums
_SUMS, _LEFT, _RIGHT, _HALF_LEFT, _HALF_RIGHT = range(5)  # registers
_SHAPES = {
    _SUMS: (MOST, _BYTES),
    _LEFT: (MOST, _DEPTH),
    _RIGHT: (_DEPTH // 4, _BYTES),
    _HALF_LEFT: (MOST, _HALF),
    _HALF_RIGHT: (_HALF // 4, _BYTES),
}
"""Rows of the registers, and bytes of a row."""


@contextmanager
def registers(c: Code) -> Iterator[None]:
    """Configure the registers of this thread with `_SHAPES`, and release them at the end."""
    form = c.stack_alloc(64)
    for at in range(0, 64, 8):
        c.store(c.i(0), form, at)
    c.store(ir.Constant(I8, 1), form, 0)  # the palette
    for register, (rows, size) in _SHAPES.items():
        c.store(ir.Constant(I16, size), form, 16 + 2 * register)
        c.store(ir.Constant(I8, rows), form, 48 + register)
    _do(c, "ldtilecfg", form)
    yield
    _do(c, "tilerelease")


def scores(module: ir.Module, machine: Machine, heads: int, whole: Callable[[Code, Value], Value]) -> Any:
    """`Products.scores`. A key has `whole(code, dim)` bytes and a scale, a query also the initial sum."""
    c = Code(module, machine, f"scores_{heads}", (POINTER, POINTER, I64, I64, POINTER, POINTER))
    keys, queries, stride, dim, out, ahead = c.arguments
    size = whole(c, dim)
    with c.loop(size, step=_HALF) as i:
        fetch(c, ahead, c.mul(i, BLOCK), _HALF * BLOCK)
    found = c.stack_alloc(MOST * LINE)
    for first in range(0, BLOCK, _COLUMNS):
        column, to = _Lines(c.at(keys, 4 * first), c.i(4 * BLOCK)), _Lines(c.at(found, 4 * first), c.i(LINE))
        _multiply(c, _Lines(queries, stride), column, size, to)
    scales = c.at(keys, c.mul(size, BLOCK))
    with c.loop(heads) as h:
        end, line, to = c.at(queries, c.add(c.mul(stride, h), size)), c.mul(h, LINE), c.at(out, c.mul(h, LINE))
        for at in range(0, LINE, _BYTES):
            both = c.b.fmul(_repeated(c, end, 0, F32), c.load(scales, at, F32, _COLUMNS))
            c.store(c.b.fmul(both, _sums(c, c.at(found, line), at, end)), to, at)
    return c.done()


def mix(module: ir.Module, machine: Machine, heads: int, scale: int) -> Any:
    """`Products.mixes`. A line of weights has their scale at byte `scale`, then the initial sum."""
    kinds = (POINTER, I64, I64, I64, POINTER, POINTER, I64, POINTER)
    c = Code(module, machine, f"mix_{heads}", kinds)
    values, padded, _, _, weights, out, stride, ahead = c.arguments
    with c.loop(padded, step=_COLUMNS) as i:
        fetch(c, ahead, c.mul(i, BLOCK), _COLUMNS * BLOCK)
    found = c.stack_alloc(MOST * LINE)
    with c.loop(padded, step=LINE // 4) as i:
        some = c.smaller(c.sub(padded, i), LINE // 4)
        with c.loop(some, step=_COLUMNS) as j:
            left, place = _Lines(weights, c.i(LINE)), c.at(values, c.mul(c.add(i, j), 4))
            column = _Lines(place, c.mul(padded, 4))
            _multiply(c, left, column, c.i(BLOCK), _Lines(c.at(found, c.mul(j, 4)), c.i(LINE)))
        with c.loop(heads) as h:
            end, line = c.at(weights, c.add(c.mul(h, LINE), scale)), c.at(found, c.mul(h, LINE))
            to = c.at(out, c.add(c.mul(stride, h), c.mul(i, 4)))
            with c.loop(c.mul(some, 4), step=_BYTES) as at:
                c.store(c.b.fmul(_repeated(c, end, 0, F32), _sums(c, line, at, end)), to, at)
    return c.done()


@dataclass(frozen=True, slots=True)
class _Lines:
    """A matrix: its address, and the bytes from row to row."""

    place: Value
    stride: Value


def _multiply(c: Code, left: _Lines, right: _Lines, depth: Value, out: _Lines) -> None:
    """Write sums [MOST][16] of products of `depth` bytes, a multiple of 32, to `out`."""
    _do(c, "tilezero", _SUMS)

    def add(at: Value, registers: tuple[int, int]) -> None:
        _do(c, "tileloadd64", registers[0], c.at(left.place, at), left.stride)
        _do(c, "tileloadd64", registers[1], c.at(right.place, c.mul(c.div(at, 4), right.stride)), right.stride)
        _do(c, "tdpbsud", _SUMS, *registers)

    rest = c.rem(depth, _DEPTH)
    with c.loop(c.sub(depth, rest), step=_DEPTH) as at:
        add(at, (_LEFT, _RIGHT))
    with c.when(c.compare(rest, "!=", 0)):
        add(c.sub(depth, rest), (_HALF_LEFT, _HALF_RIGHT))
    _do(c, "tilestored64", _SUMS, out.place, out.stride)


def _sums(c: Code, found: Value, at: Value | int, end: Value) -> Value:
    """16 sums as float32, with the initial sum, which is 4 bytes after `end`."""
    whole = c.b.add(c.load(found, at, I32, _COLUMNS), _repeated(c, end, 4, I32))
    return c.b.sitofp(whole, ir.VectorType(F32, _COLUMNS))


def _repeated(c: Code, place: Value, at: int, kind: Any) -> Value:
    return c.repeated(c.load(place, at, kind), _COLUMNS)


def _do(c: Code, name: str, *arguments: Value | int) -> None:
    """Emit an instruction; arguments are numbers of registers, addresses and strides."""
    values = [ir.Constant(I8, a) if isinstance(a, int) else a for a in arguments]
    c.call(c.external(f"llvm.x86.{name}", ir.VoidType(), [value.type for value in values]), *values)

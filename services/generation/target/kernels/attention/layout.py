"""The cache of keys and values (`docs/numerics.md`): its layout, its stored form, and moves of the accepted path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from services.generation.target.blocks import BLOCK
from services.generation.target.kernels.code import F32, I8, I16, I32, I64, POINTER, Code, Value
from services.generation.target.kernels.machine import Machine
from services.generation.target.kernels.records import Kernel

LANES = 16
LINE = 4 * BLOCK  # bytes of a block's scores
TILE = 24  # query heads, of one row or of several, that go through a block together
_SPLIT = 8  # units of work for each member below which blocks, not rows, are shared out


def scratch_bytes(group_size: int, padded: int) -> int:
    """Scratch of a member: of a tile the scores, queries, results of a block and results so far; of a row the scores
    and values of a block that are gathered.
    """
    tile = max(TILE, group_size)
    return tile * (LINE + 4 * padded + 2 * result_bytes(padded)) + LINE * (group_size + padded)


def result_bytes(padded: int) -> int:
    """Bytes of a head's result: weighted values [padded], largest score, sum of weights."""
    return 4 * (padded + LANES)


def most_split(members: int) -> int:
    """Rows times key heads whose blocks may be shared out at once."""
    return _SPLIT * members


class Layout:
    """A row's place in the record, and the parts of the scratch."""

    def __init__(self, c: Code, record: Any, scratch: Value) -> None:
        self.group_size = c.div(record.heads, record.kv_heads)
        self.tile = c.larger(c.div(c.i(TILE), self.group_size), 1)  # rows
        self.result = c.mul(c.add(record.padded, LANES), 4)
        lines = c.mul(self.tile, self.group_size)
        self.scores, self.gathered = scratch, c.at(scratch, c.mul(lines, LINE))
        self.values = c.at(self.gathered, c.mul(self.group_size, LINE))
        self.queries = c.at(self.values, c.mul(record.padded, LINE))
        self.one = c.at(self.queries, c.mul(lines, c.mul(record.padded, 4)))
        self._code, self.row = c, c.mul(self.group_size, self.result)
        self._rows = c.at(self.one, c.mul(lines, self.result))

    def of_row(self, row: Value) -> Value:
        """The blocks joined so far of a row of the tile."""
        return self._code.at(self._rows, self._code.mul(row, self.row))


def is_split(kernel: Kernel) -> Value:
    c = kernel.code
    units = c.mul(kernel.passed.rows, kernel.record.kv_heads)
    return c.compare(units, "<", c.mul(kernel.members, _SPLIT))


def seen(c: Code, record: Any, passed: Any, row: Value) -> tuple[Value, Value]:
    """Positions [first, length) that a row sees: of those up to the last one, a window hides those that lie `window` or
    more back, a chunk those before the last one's.
    """
    length = c.index(passed.lengths, row)
    position = c.sub(length, 1)
    windowed = c.larger(c.sub(length, record.window), 0)
    first = c.b.select(c.compare(record.window, ">", 0), windowed, c.i(0))
    before = c.rem(position, c.larger(record.chunk, 1))
    return c.b.select(c.compare(record.chunk, ">", 0), c.larger(c.sub(position, before), first), first), length


class Path:
    """Where the cache holds what a row sees: by its sequence's table, from position `run` on by the row's own branch of
    the tree.
    """

    def __init__(self, c: Code, passed: Any, row: Value) -> None:
        self._code, self.run = c, c.index(passed.contiguous, row)
        line = c.mul(c.index(passed.sequences, row), passed.table_stride)
        self.table = c.at(passed.tables, c.mul(line, 4))
        self._branch = c.at(passed.branches, c.mul(c.index(passed.branch_starts, row), 4))

    def slot(self, position: Value) -> Value:
        c = self._code
        slot = c.variable(I64, c.i(0))

        def in_table() -> None:
            number = c.index(self.table, c.div(position, BLOCK))
            c.put(c.add(c.mul(number, BLOCK), c.rem(position, BLOCK)), slot)

        def in_branch() -> None:
            c.put(c.index(self._branch, c.sub(position, self.run)), slot)

        c.either(c.compare(position, "<", self.run), in_table, in_branch)
        return c.get(slot)


@dataclass(frozen=True, slots=True)
class Cached:
    """float32 as it is, or rounded to bfloat16 where it is stored and widened where it is read."""

    name: str
    size: int  # bytes of an element

    def load(self, c: Code, pointer: Value, offset: Value | int, lanes: int = 1) -> Value:
        """Elements as float32; the offset is in bytes."""
        if self.size == 4:
            return c.load(pointer, offset, F32, lanes)
        words = ir.VectorType(I32, lanes) if lanes > 1 else I32
        wide = c.b.zext(c.load(pointer, offset, I16, lanes), words)
        return c.b.bitcast(c.b.shl(wide, c.vector(I32, 16, lanes)), ir.VectorType(F32, lanes) if lanes > 1 else F32)

    def store(self, c: Code, value: Value, pointer: Value, offset: Value | int) -> None:
        """Store float32 values, to the nearest bfloat16, ties to even; a NaN stays one."""
        if self.size == 4:
            c.store(value, pointer, offset)
            return
        b = c.b
        lanes = value.type.count if isinstance(value.type, ir.VectorType) else 1
        words: Any = ir.VectorType(I32, lanes) if lanes > 1 else I32
        bits = b.bitcast(value, words)
        half = c.vector(I32, 16, lanes)
        odd = b.and_(b.lshr(bits, half), c.vector(I32, 1, lanes))
        rounded = b.lshr(b.add(b.add(bits, c.vector(I32, 0x7FFF, lanes)), odd), half)
        nan = b.or_(b.lshr(bits, half), c.vector(I32, 0x40, lanes))
        kept = b.select(b.fcmp_unordered("uno", value, value), nan, rounded)
        c.store(b.trunc(kept, ir.VectorType(I16, lanes) if lanes > 1 else I16), pointer, offset)


CACHED = {cached.name: cached for cached in (Cached("float32", 4), Cached("bfloat16", 2))}


_BYTES = 32


def build(module: ir.Module, machine: Machine, cached: Cached) -> None:
    """Add `move`(keys, values, layers, blocks, kv_heads, dim, padded, sources, targets, count), one pair after another.

    keys [layers][blocks][kv_heads][dim][BLOCK], values [layers][blocks][kv_heads][BLOCK][padded]; sources and targets
    int64 [count].
    """
    kinds = (POINTER, POINTER, I64, I64, I64, I64, I64, POINTER, POINTER, I64)
    c = Code(module, machine, "move", kinds, exported=True)
    keys, values, layers, blocks, kv_heads, dim, padded, sources, targets, count = c.arguments
    size = cached.size
    key_bytes, value_bytes, line = c.mul(dim, size * BLOCK), c.mul(padded, size * BLOCK), c.mul(padded, size)
    element = I32 if size == 4 else I16
    with c.loop(layers) as layer, c.loop(count) as number:
        slots = [c.word(array, number) for array in (sources, targets)]
        first = [c.mul(c.add(c.mul(layer, blocks), c.div(slot, BLOCK)), kv_heads) for slot in slots]
        offsets = [c.rem(slot, BLOCK) for slot in slots]
        with c.loop(kv_heads) as kv:
            source, target = (
                c.at(keys, c.add(c.mul(c.add(f, kv), key_bytes), c.mul(o, size)))
                for f, o in zip(first, offsets, strict=True)
            )
            with c.loop(dim) as i:
                at = c.mul(i, size * BLOCK)
                c.store(c.load(source, at, element), target, at)
            source, target = (
                c.at(values, c.add(c.mul(c.add(f, kv), value_bytes), c.mul(o, line)))
                for f, o in zip(first, offsets, strict=True)
            )
            with c.loop(line, step=_BYTES) as at:
                c.store(c.load(source, at, I8, _BYTES), target, at)
    c.done()

"""Addresses in attention: the positions that a row sees, their slots in the cache, the parts of the scratch."""

from __future__ import annotations

from typing import Any

from services.generation.target.blocks import BLOCK
from services.generation.target.kernels.code import Code, Value
from services.generation.target.kernels.records import Kernel

LANES = 16
LINE = 4 * BLOCK  # bytes of a block's scores
HEADS = 6  # query heads, of one row or several, for which a key is loaded
TILE = 16  # query heads, of one row or several, that compute a block together
_SPLIT = 8  # with fewer units of work per member, blocks and not rows are divided among members


def scratch_bytes(group_size: int, padded: int) -> int:
    """Bytes of a member's scratch: scores, queries, results of a block and joined results of a tile; gathered scores
    and values of a block of a row.
    """
    tile = max(TILE, group_size)
    return tile * (LINE + 4 * padded + 2 * result_bytes(padded)) + LINE * (group_size + padded)


def result_bytes(padded: int) -> int:
    """Bytes of a head's result: weighted values [padded], largest score, sum of weights."""
    return 4 * (padded + LANES)


def most_split(members: int) -> int:
    """The most rows times key heads whose blocks are divided among members."""
    return _SPLIT * members


class Layout:
    """The parts of the scratch, and sizes of results."""

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
        """The joined results of a row of the tile."""
        return self._code.at(self._rows, self._code.mul(row, self.row))


def is_split(kernel: Kernel) -> Value:
    c = kernel.code
    units = c.mul(kernel.passed.rows, kernel.record.kv_heads)
    return c.compare(units, "<", c.mul(kernel.members, _SPLIT))


def seen(c: Code, record: Any, passed: Any, row: Value) -> tuple[Value, Value]:
    """Positions [first, length) that a row sees: the last `window` of them that are in the last position's chunk."""
    length = c.index(passed.lengths, row)
    position = c.sub(length, 1)
    windowed = c.larger(c.sub(length, record.window), 0)
    first = c.b.select(c.compare(record.window, ">", 0), windowed, c.i(0))
    before = c.rem(position, c.larger(record.chunk, 1))
    return c.b.select(c.compare(record.chunk, ">", 0), c.larger(c.sub(position, before), first), first), length


class Path:
    """The slots of positions that a row sees: from its sequence's table, from position `run` on from its branch."""

    def __init__(self, c: Code, passed: Any, row: Value) -> None:
        self._code, self.run = c, c.index(passed.contiguous, row)
        line = c.mul(c.index(passed.sequences, row), passed.table_stride)
        self.table = c.at(passed.tables, c.mul(line, 4))
        self._branch = c.at(passed.branches, c.mul(c.index(passed.branch_starts, row), 4))

    def slot(self, position: Value) -> Value:
        c = self._code
        slot = c.variable(c.i(0))

        def in_table() -> None:
            number = c.index(self.table, c.div(position, BLOCK))
            c.put(c.add(c.mul(number, BLOCK), c.rem(position, BLOCK)), slot)

        def in_branch() -> None:
            c.put(c.index(self._branch, c.sub(position, self.run)), slot)

        c.either(c.compare(position, "<", self.run), in_table, in_branch)
        return c.get(slot)

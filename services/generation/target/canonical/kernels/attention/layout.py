"""Where the attention kernels keep what they work in, and which positions a row sees."""

from __future__ import annotations

from typing import Any

from services.generation.target.blocks import BLOCK
from services.generation.target.canonical.kernels.code import Code, Value
from services.generation.target.canonical.kernels.records import Kernel

LANES = 16
LINE = 4 * BLOCK  # bytes of a block's scores
TILE = 8  # rows that go through a block together
_SPLIT = 8  # units of work for each member below which blocks, not rows, are shared out


def scratch_bytes(sharing: int, padded: int) -> int:
    """Of one member: scores of all heads twice, values of a block, one block's result and those of a tile's rows."""
    return 2 * sharing * LINE + LINE * padded + (1 + TILE) * sharing * result_bytes(padded)


def result_bytes(padded: int) -> int:
    """Of a head's result: weighted values [padded], largest score, sum of weights."""
    return 4 * (padded + LANES)


def most_split(members: int) -> int:
    """Rows times key heads whose blocks may be shared out at once."""
    return _SPLIT * members


class Layout:
    """A row's place in the record, and the parts of the scratch."""

    def __init__(self, c: Code, record: Any, scratch: Value) -> None:
        self.sharing = c.div(record.heads, record.kv_heads)
        self.result = c.mul(c.add(record.padded, LANES), 4)
        lines = c.mul(self.sharing, LINE)
        self.scores, self.gathered = scratch, c.at(scratch, lines)
        self.values = c.at(scratch, c.mul(lines, 2))
        self.one = c.at(self.values, c.mul(record.padded, LINE))
        self._code, self._row = c, c.mul(self.sharing, self.result)
        self._rows = c.at(self.one, self._row)

    def of_row(self, row: Value) -> Value:
        """The blocks joined so far of a row of the tile."""
        return self._code.at(self._rows, self._code.mul(row, self._row))


def is_split(kernel: Kernel) -> Value:
    c = kernel.code
    units = c.mul(kernel.passed.rows, kernel.record.kv_heads)
    enough = c.compare(units, "<", c.mul(kernel.members, _SPLIT))
    return c.b.and_(enough, c.compare(kernel.members, ">", 1))


def seen(c: Code, record: Any, passed: Any, row: Value) -> tuple[Value, Value]:
    """Positions [first, length) that a row sees: a window hides those that lie `window` or more back, a chunk those
    before its own.
    """
    position = c.index(passed.positions, row)
    length = c.add(position, 1)
    windowed = c.larger(c.sub(length, record.window), 0)
    first = c.b.select(c.compare(record.window, ">", 0), windowed, c.i(0))
    before = c.rem(position, c.larger(record.chunk, 1))
    return c.b.select(c.compare(record.chunk, ">", 0), c.larger(c.sub(position, before), first), first), length

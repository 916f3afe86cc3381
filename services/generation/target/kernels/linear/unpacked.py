"""Quantised groups taken apart in memory: passes over many rows do it once for all tiles of rows.

Lines of PANEL numbers, one for each column: eight of four integers of a byte, in the order of `QuantisedGroup.words`,
then the scales and `least`, float32.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from services.generation.target.kernels.code import F32, I32, I64, POINTER, Code, Value
from services.generation.target.kernels.linear.float_tiles import panel_bytes
from services.generation.target.kernels.linear.widening import QuantisedGroup
from services.generation.target.kernels.machine import Machine
from services.generation.target.kernels.records import FIELDS, Words
from services.generation.target.kernels.storages import GROUP, PANEL, Storage

TOGETHER = 8  # groups that are unpacked together: those that share a header
_LINE = 4 * PANEL
_WORDS = GROUP // 4
AHEAD = 8192  # bytes of packed weights that are prefetched into the second-level cache


def unpacked_bytes(storage: Storage) -> int:
    """Bytes of an unpacked group."""
    return (_WORDS + storage.parts + (not storage.middle)) * _LINE


class UnpackedGroup:
    """The columns [column, column + lanes) of an unpacked group, like a `QuantisedGroup`."""

    def __init__(self, code: Code, storage: Storage, place: Value, column: int, lanes: int) -> None:
        self._c, self._place, self._column, self._lanes = code, place, column, lanes
        self.scales = [self._line(_WORDS + part, F32) for part in range(storage.parts)]
        self.least = None if storage.middle else self._line(_WORDS + storage.parts, F32)

    def word(self, number: int) -> Value:
        return self._line(number, I32)

    def _line(self, number: int, kind: Any) -> Value:
        return self._c.load(self._place, _LINE * number + 4 * self._column, kind, self._lanes, 4)


def unpack(module: ir.Module, machine: Machine, storage: Storage) -> Any:
    """unpack(record, panel, first, groups, to): groups [first, first + groups) of a panel; `first` is a multiple of
    TOGETHER.
    """
    c = Code(module, machine, "unpack", (POINTER, I64, I64, I64, POINTER))
    record_, panel, first, groups, to = c.arguments
    record = Words(c, record_, FIELDS["linear"], 2)
    place = c.at(record.weights, c.mul(panel, panel_bytes(c, record, storage)))
    header = c.at(place, c.mul(c.div(first, storage.groups), storage.panel(storage.groups * GROUP)))
    with c.loop(groups) as number:
        group = c.at(header, c.add(c.mul(number, storage.group), storage.header))
        for at in range(0, storage.group, 64):
            c.prefetch(group, AHEAD + at, locality=2)
        out = c.at(to, c.mul(number, unpacked_bytes(storage)))
        for column in range(0, PANEL, machine.lanes):
            found = QuantisedGroup(c, storage, header, group, column, machine.lanes)
            lines = [*found.words, *found.scales, *(() if found.least is None else (found.least,))]
            for line, value in enumerate(lines):
                c.store(value, out, _LINE * line + 4 * column)
    return c.done()

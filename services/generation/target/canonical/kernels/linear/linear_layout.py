"""The memory layout of a linear layer's kernels: where panels, blocks and copied rows of x lie."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from services.generation.target.canonical.kernels.code import F32, I64, POINTER, Code, Value
from services.generation.target.canonical.kernels.machine import Machine
from services.generation.target.canonical.kernels.records import FIELDS, Words
from services.generation.target.canonical.kernels.storages import BLOCK, GROUP, Storage

PER_BLOCK = BLOCK // GROUP
LINE = 4 * BLOCK  # bytes of a row of x in one block, where it is copied


def linear_part(module: ir.Module, machine: Machine, name: str) -> tuple[Code, Any, Value, Value, Value, Value]:
    """A part of the kernel: (code, record, rows, scratch, first panel, last panel)."""
    c = Code(module, machine, name, (POINTER, I64, POINTER, I64, I64))
    record, rows, scratch, first, last = c.arguments
    return c, Words(c, record, FIELDS["linear"], 2), rows, scratch, first, last


def copy_x(c: Code, record: Any, x: Value, rows: Value, stride: int, to: Value) -> None:
    """x as [block][stride rows][BLOCK], so that a row's place is a constant."""
    with c.loop(c.ceil_div(record.groups, PER_BLOCK)) as block:
        source, place = c.at(x, c.mul(block, LINE)), c.at(to, c.mul(block, LINE * stride))
        copy_block(c, record, block, source, place, rows)


def copy_block(c: Code, record: Any, block: Value, source: Value, to: Value, rows: Value) -> None:
    """One block of x, a line for each row."""
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

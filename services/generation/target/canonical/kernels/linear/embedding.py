"""Rows of the embedding table, looked up where the output layer's packed weights lie, or in a table of their own."""

from __future__ import annotations

from llvmlite import ir

from services.generation.target.canonical.kernels.code import F32, I64
from services.generation.target.canonical.kernels.linear.tiled import widen_function
from services.generation.target.canonical.kernels.linear.widening import block_place
from services.generation.target.canonical.kernels.machine import Machine
from services.generation.target.canonical.kernels.records import Kernel
from services.generation.target.canonical.kernels.storages import BLOCK, GROUP, PANEL, Storage

_PER_BLOCK = BLOCK // GROUP


def build(module: ir.Module, machine: Machine, storage: Storage) -> None:
    """Add `embed`: x[row] = weights[tokens[row]] * factor + 0; the zero makes +0 of -0, which some storages lack."""
    kernel = Kernel(module, machine, "embed")
    widen = widen_function(module, machine, storage)
    c, record, passed = kernel.code, kernel.record, kernel.passed
    panel_bytes = c.mul(record.groups, storage.group)
    if storage.header:
        panel_bytes = c.add(panel_bytes, c.mul(c.div(record.groups, storage.groups), storage.header))
    scratch = kernel.scratch()
    first, last = kernel.share(passed.rows)
    with c.loop(last, first) as row:
        token = c.load(passed.tokens, c.mul(row, 8), I64)
        panel = c.at(record.weights, c.mul(c.div(token, PANEL), panel_bytes))
        column = c.at(scratch, c.mul(c.rem(token, PANEL), 4))
        out = c.at(record.x, c.mul(row, record.x_stride))
        with c.loop(c.ceil_div(record.groups, _PER_BLOCK)) as block:
            done = c.mul(block, _PER_BLOCK)
            count = c.smaller(c.sub(record.groups, done), _PER_BLOCK)
            c.call(widen, scratch, *block_place(c, storage, panel, block), count)
            inputs = c.smaller(c.mul(count, GROUP), c.sub(record.size, c.mul(block, BLOCK)))
            to = c.at(out, c.mul(block, 4 * BLOCK))
            with c.loop(inputs) as k:
                value = c.b.fmul(c.load(column, c.mul(k, 4 * PANEL), F32), record.factor)
                c.store(c.b.fadd(value, c.real(0.0)), to, c.mul(k, 4))
    c.done()

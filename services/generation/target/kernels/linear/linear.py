"""Linear layers, y = x W^T + b: `docs/numerics.md`, Linear. One kernel for each storage of the weights.

The sum over a block of 128 inputs is one chain of fma; blocks are added in ascending order, then the bias. Lanes run
across columns, tiles across rows and columns, members of the team across panels, and nothing runs along a sum: a row's
bits do not depend on the number of rows or on the member that computes it.

Weights are widened in registers and used for up to 12 rows. More rows are multiplied with each panel in chunks, while
its weights are in a cache. A chunk leaves registers for two vectors of columns, so that an x is loaded once for both:
Intel's Ice Lake multiplies two vectors of 64 bytes a cycle and loads about one. Machines with few registers would widen
too often: they widen a block of 32 columns into the first-level cache and multiply it with all rows in tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir

from services.generation.target.kernels.code import F32, I64, Value
from services.generation.target.kernels.linear.float_tiles import (
    LINE,
    PER_BLOCK,
    UNPACKED,
    LinearPart,
    copy_x,
    direct,
    panel_bytes,
    tiled,
    tiled_scratch_bytes,
    widen_function,
)
from services.generation.target.kernels.linear.widening import block_place
from services.generation.target.kernels.machine import Machine
from services.generation.target.kernels.records import Kernel
from services.generation.target.kernels.storages import BLOCK, GROUP, PANEL, Storage

_DIRECT = (1, 2, 3, 4, 5, 6, 8, 10, 12)  # numbers of rows with a direct kernel
_DIRECT_SCALED = (1, 2, 3, 4, 5, 6, 8)  # if scales need registers, too
_DIRECT_NARROW = (1, 2, 3, 4)  # for machines of 16 registers or few lanes
_X_BYTES = 3 << 17  # of x that are multiplied with a panel together: most of a second-level cache
_NOWHERE = 1024  # bytes at the end of the scratch for surplus rows of a kernel


def _is_wide(machine: Machine) -> bool:
    """Whether sums of _DIRECT's most rows and two vectors of columns fit the registers."""
    return machine.registers * machine.lanes >= 512


def scratch_bytes(inputs: int) -> int:
    """Scratch of one member, for a layer of `inputs` inputs."""
    line = -(-inputs // BLOCK) * LINE
    return max(_X_BYTES + line * _DIRECT[-1], tiled_scratch_bytes()) + _NOWHERE


def build(module: ir.Module, machine: Machine, storage: Storage) -> None:
    """Add the kernel `linear` to a module."""
    counts = (_DIRECT_SCALED if storage.scales else _DIRECT) if _is_wide(machine) else _DIRECT_NARROW
    few = {rows: direct(module, machine, storage, rows) for rows in counts}
    many = _chunked(module, machine, few) if _is_wide(machine) else tiled(module, machine, storage)
    kernel = Kernel(module, machine, "linear")
    c, record = kernel.code, kernel.record
    first, last = kernel.panels()
    rows, scratch = kernel.rows(), kernel.scratch()
    nowhere = c.at(scratch, c.sub(record.scratch_size, _NOWHERE))

    def run(count: int) -> Callable[[], None]:
        def case() -> None:
            x = scratch if count > UNPACKED else record.x
            if count > UNPACKED:
                copy_x(c, record, record.x, rows, count, scratch)
            c.call(few[count], c.arguments[0], x, record.y, nowhere, rows, first, last)

        return case

    cases = {r: run(next(count for count in counts if count >= r)) for r in range(1, counts[-1] + 1)}
    c.choose(rows, cases)
    with c.when(c.compare(rows, ">", counts[-1])):
        c.call(many, c.arguments[0], rows, scratch, first, last)
    c.done()


def _chunked(module: ir.Module, machine: Machine, few: dict[int, Any]) -> Any:
    """Panels [first, last) for many rows: as many rows as fit the second-level cache are multiplied with a panel in
    nearly equal chunks, at most as large as the largest of `few`.
    """
    part = LinearPart(module, machine, "chunked")
    c, record, scratch = part.code, part.record, part.scratch
    nowhere, most = c.at(scratch, c.sub(record.scratch_size, _NOWHERE)), max(few)
    line = c.mul(c.ceil_div(record.groups, PER_BLOCK), LINE)
    chunk_bytes = c.mul(line, most)
    together = c.mul(c.larger(c.div(c.i(_X_BYTES), chunk_bytes), 1), most)
    variants = [count for count in few if count > UNPACKED]
    with c.loop(part.rows, step=together) as begin:
        some = c.smaller(c.sub(part.rows, begin), together)
        size = c.even(some, most)

        def place(row: Value) -> tuple[Value, Value]:
            """The addresses of x and y of the chunk that begins with a row."""
            x = c.at(scratch, c.mul(c.div(row, size), chunk_bytes))
            return x, c.at(record.y, c.mul(c.add(begin, row), record.y_stride))

        def cases(count: Value, work: Callable[[int], Callable[[], None]]) -> None:
            c.choose(count, {r: work(next(v for v in variants if v >= r)) for r in range(1, most + 1)})

        with c.loop(some, step=size) as row:
            source = c.at(record.x, c.mul(c.add(begin, row), record.x_stride))
            count = c.smaller(c.sub(some, row), size)

            def copied(stride: int) -> Any:
                return lambda: copy_x(c, record, source, count, stride, place(row)[0])

            cases(count, copied)
        with c.loop(part.last, part.first, 2) as panel, c.loop(some, step=size) as row:
            end, count = c.smaller(c.add(panel, 2), part.last), c.smaller(c.sub(some, row), size)

            def computed(stride: int) -> Any:
                return partial(c.call, few[stride], c.arguments[0], *place(row), nowhere, count, panel, end)

            cases(count, computed)
    return c.done()


def build_embedding(module: ir.Module, machine: Machine, storage: Storage) -> None:
    """Add the kernel `embed`: x[row] = weights[tokens[row]] * factor + 0. Adding 0 turns -0 into +0: some storages have
    no -0.
    """
    kernel = Kernel(module, machine, "embed")
    widen = widen_function(module, machine, storage)
    c, record, passed = kernel.code, kernel.record, kernel.passed
    size = panel_bytes(c, record, storage)
    scratch = kernel.scratch()
    first, last = kernel.share(passed.rows)
    with c.loop(last, first) as row:
        token = c.load(passed.tokens, c.mul(row, 8), I64)
        panel = c.at(record.weights, c.mul(c.div(token, PANEL), size))
        column = c.at(scratch, c.mul(c.rem(token, PANEL), 4))
        out = c.at(record.x, c.mul(row, record.x_stride))
        with c.loop(c.ceil_div(record.groups, PER_BLOCK)) as block:
            done = c.mul(block, PER_BLOCK)
            count = c.smaller(c.sub(record.groups, done), PER_BLOCK)
            c.call(widen, scratch, *block_place(c, storage, panel, block), count)
            inputs = c.smaller(c.mul(count, GROUP), c.sub(record.size, c.mul(block, BLOCK)))
            to = c.at(out, c.mul(block, 4 * BLOCK))
            with c.loop(inputs) as k:
                value = c.b.fmul(c.load(column, c.mul(k, 4 * PANEL), F32), record.factor)
                c.store(c.b.fadd(value, c.real(0.0)), to, c.mul(k, 4))
    c.done()

"""Gated short convolutions over a row's own path: `docs/numerics.md`, Short convolutions.

The inputs are in the paged cache, a line for each token, in place of values: a row sees them as it would see keys, on
any branch of a tree and after any shared prefix, and nothing has to be saved or rolled back.
"""

from __future__ import annotations

from llvmlite import ir

from services.generation.target.kernels.attention.form import Lines
from services.generation.target.kernels.attention.layout import Path
from services.generation.target.kernels.code import F32, I64, Value
from services.generation.target.kernels.machine import Machine
from services.generation.target.kernels.records import Kernel
from services.generation.target.kernels.row_operations import vectors
from services.generation.target.kernels.storages import PANEL
from services.generation.target.sizes import MOST_TAPS


def build(module: ir.Module, machine: Machine, cached: Lines) -> None:
    """Add `convolve`: a row's line is b, c, x; b * x is stored in the cache, then c * its convolution in `mixed`.

    values [slots][padded], weight [taps][padded]. A member computes some columns of all rows, and reads nothing that
    another member writes.
    """
    kernel = Kernel(module, machine, "convolve")
    c, record, passed = kernel.code, kernel.record, kernel.passed
    first, last = kernel.share(c.ceil_div(record.size, PANEL))
    low = c.mul(first, PANEL)
    size, column = c.sub(c.smaller(c.mul(last, PANEL), record.size), low), c.mul(low, 4)
    line, own = c.mul(record.padded, cached.size), c.mul(low, cached.size)
    places = c.stack_alloc(8 * MOST_TAPS)

    def parts(row: Value) -> list[Value]:
        start = c.at(c.at(record.qkv, c.mul(row, record.qkv_stride)), column)
        return [c.at(start, c.mul(c.mul(record.size, number), 4)) for number in range(3)]

    with c.loop(passed.rows) as row:
        before, _, x = parts(row)
        to = c.at(record.values, c.add(c.mul(c.index(passed.slots, row), line), own))

        def stored(at: Value, lanes: int) -> None:
            product = c.b.fmul(c.load(before, at, F32, lanes), c.load(x, at, F32, lanes))
            cached.store(c, product, to, c.div(c.mul(at, cached.size), 4))

        vectors(c, size, stored)
    with c.loop(passed.rows) as row:
        _, after, _ = parts(row)
        path, begin = Path(c, passed, row), c.sub(c.index(passed.lengths, row), record.taps)
        hidden = c.larger(c.sub(0, begin), 0)  # taps before the first position
        with c.loop(record.taps, hidden) as tap:
            c.store(c.add(c.mul(path.slot(c.add(begin, tap)), line), own), places, c.mul(tap, 8))
        out = c.at(c.at(record.mixed, c.mul(row, record.mixed_stride)), column)

        def convolved(at: Value, lanes: int) -> None:
            total = c.variable(c.vector(F32, 0.0, lanes))
            with c.loop(record.taps, hidden) as tap:
                weight = c.load(c.at(record.weight, c.add(c.mul(c.mul(tap, record.padded), 4), column)), at, F32, lanes)
                place = c.at(record.values, c.load(places, c.mul(tap, 8), I64))
                c.put(
                    c.fma(weight, cached.load(c, place, c.div(c.mul(at, cached.size), 4), lanes), c.get(total)), total
                )
            c.store(c.b.fmul(c.load(after, at, F32, lanes), c.get(total)), out, at)

        vectors(c, size, convolved)
    c.done()

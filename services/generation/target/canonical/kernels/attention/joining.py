"""Joining blocks: their results in ascending order, and the mixed values of a row in the end."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from services.generation.target.canonical.kernels.attention.layout import LANES
from services.generation.target.canonical.kernels.code import F32, I64, POINTER, Code
from services.generation.target.canonical.kernels.exponential import exponential
from services.generation.target.canonical.kernels.machine import Machine
from services.generation.target.canonical.kernels.records import FIELDS, Words


def join_function(module: ir.Module, machine: Machine) -> Any:
    """join(all, one, sharing, padded, first): the results so far and one more block's, for each query head.

    With largest scores M and m: top = max(M, m), a = exp(M - top), c = exp(m - top), then sums and values become
    fma(new, c, old * a). The first block is taken as it is.
    """
    c = Code(module, machine, "join", (POINTER, POINTER, I64, I64, I64))
    all_, one, sharing, padded, first = c.arguments
    b, size = c.b, c.mul(c.add(padded, LANES), 4)

    def taken() -> None:
        with c.loop(c.mul(sharing, size), step=4 * LANES) as at:
            c.store(c.load(one, at, F32, LANES), all_, at)

    def joined() -> None:
        with c.loop(sharing) as head:
            old, new = c.at(all_, c.mul(head, size)), c.at(one, c.mul(head, size))
            old_end, new_end = c.at(old, c.mul(padded, 4)), c.at(new, c.mul(padded, 4))
            before, now = c.load(old_end, 0, F32), c.load(new_end, 0, F32)
            top = b.select(b.fcmp_ordered(">", now, before), now, before)
            fade, gain = exponential(c, b.fsub(before, top)), exponential(c, b.fsub(now, top))
            c.store(top, old_end, 0)
            total = c.fma(c.load(new_end, 4, F32), gain, b.fmul(c.load(old_end, 4, F32), fade))
            c.store(total, old_end, 4)
            fades, gains = c.repeated(fade, LANES), c.repeated(gain, LANES)
            with c.loop(padded, step=LANES) as i:
                at = c.mul(i, 4)
                kept = b.fmul(c.load(old, at, F32, LANES), fades)
                c.store(c.fma(c.load(new, at, F32, LANES), gains, kept), old, at)

    c.either(c.compare(first, "!=", 0), taken, joined)
    return c.done()


def sink_function(module: ir.Module, machine: Machine, join: Any) -> Any:
    """sink(record, all, one, kv): where there are sinks, join a block that has nothing but them; `one` is room for it.

    Of each head the largest score is the head's sink, the sum of weights 1, and all values are 0.
    """
    c = Code(module, machine, "sink", (POINTER, POINTER, POINTER, I64))
    record_, all_, one, kv = c.arguments
    record = Words(c, record_, FIELDS["attend"], 2)
    sharing, values = c.div(record.heads, record.kv_heads), c.mul(record.padded, 4)
    with c.when(c.b.icmp_unsigned("!=", record.sinks, ir.Constant(POINTER, None))):
        with c.loop(sharing) as h:
            head = c.at(one, c.mul(h, c.add(values, 4 * LANES)))
            with c.loop(values, step=4 * LANES) as at:
                c.store(c.vector(F32, 0.0, LANES), head, at)
            sink = c.load(record.sinks, c.mul(c.add(c.mul(kv, sharing), h), 4), F32)
            c.store(sink, c.at(head, values), 0)
            c.store(c.real(1.0), c.at(head, values), 4)
        c.call(join, all_, one, sharing, record.padded, c.i(0))
    return c.done()


def finish_function(module: ir.Module, machine: Machine) -> Any:
    """finish(record, all, row, kv): mixed[row][head] = values / sum of weights."""
    c = Code(module, machine, "finish", (POINTER, POINTER, I64, I64))
    record_, all_, row, kv = c.arguments
    record = Words(c, record_, FIELDS["attend"], 2)
    sharing = c.div(record.heads, record.kv_heads)
    size = c.mul(c.add(record.padded, LANES), 4)
    with c.loop(sharing) as h:
        result, head = c.at(all_, c.mul(h, size)), c.add(c.mul(kv, sharing), h)
        total = c.load(c.at(result, c.mul(record.padded, 4)), 4, F32)
        line = c.at(record.mixed, c.mul(row, record.mixed_stride))
        out = c.at(line, c.mul(c.mul(head, record.dim), 4))
        whole = c.sub(record.dim, c.rem(record.dim, LANES))
        with c.loop(whole, step=LANES) as i:
            at = c.mul(i, 4)
            c.store(c.b.fdiv(c.load(result, at, F32, LANES), c.repeated(total, LANES)), out, at)
        with c.loop(record.dim, whole) as i:
            at = c.mul(i, 4)
            c.store(c.b.fdiv(c.load(result, at, F32), total), out, at)
    return c.done()

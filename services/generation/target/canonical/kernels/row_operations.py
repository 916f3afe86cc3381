"""The row operations of a pass, between its linear layers and attention: `docs/numerics.md`, section by section."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from services.generation.target.canonical.kernels.code import F32, I64, POINTER, Code, Value
from services.generation.target.canonical.kernels.exponential import capped, clamped, gelu_tanh, silu
from services.generation.target.canonical.kernels.machine import Machine
from services.generation.target.canonical.kernels.records import Kernel
from services.generation.target.canonical.kernels.storages import PANEL

LANES = 16  # interleaved partial sums of a mean of squares: part of the definition
KERNELS = (
    "norm",
    "add",
    "activate_silu",
    "activate_gelu",
    "activate_clamped",
    "low_rank",
    "cap",
    "copy",
    "gate",
    "scale",
)
_BYTES = 4 * LANES


def build(module: ir.Module, machine: Machine) -> None:
    _norm(module, machine)
    _add(module, machine)
    for name, function in (("silu", silu), ("gelu", gelu_tanh)):
        _activate(module, machine, f"activate_{name}", _product_with(function))
    _activate(module, machine, "activate_clamped", _bounded)
    _low_rank(module, machine)
    _cap(module, machine)
    _copy(module, machine)
    _gate(module, machine)
    _scale(module, machine)


def vectors(c: Code, size: Value, wide: Callable[[Value, int], None]) -> None:
    """`wide(byte offset, lanes)` for all elements: LANES at a time, then one by one."""
    whole = c.sub(size, c.rem(size, LANES))
    with c.loop(whole, step=LANES) as i:
        wide(c.mul(i, 4), LANES)
    with c.loop(size, whole) as i:
        wide(c.mul(i, 4), 1)


def inverse_rms(c: Code, row: Value, size: Value, epsilon: Value) -> Value:
    """1 / sqrt(mean of squares + epsilon) of [size]: square i goes to lane i % LANES by fma, then lanes are folded."""
    b, kind = c.b, ir.VectorType(F32, LANES)
    sums = c.variable(kind, c.vector(F32, 0.0, LANES))
    whole = c.sub(size, c.rem(size, LANES))
    with c.loop(whole, step=LANES) as i:
        x = c.load(row, c.mul(i, 4), F32, LANES)
        c.put(c.fma(x, x, c.get(sums)), sums)
    rest = c.room(_BYTES)
    with c.when(c.compare(whole, "<", size)):
        c.store(c.get(sums), rest, 0)
        with c.loop(size, whole) as i:
            x, lane = c.load(row, c.mul(i, 4), F32), c.mul(c.rem(i, LANES), 4)
            c.store(c.fma(x, x, c.load(rest, lane, F32)), rest, lane)
        c.put(c.load(rest, 0, F32, LANES), sums)
    total = c.folded(c.get(sums), b.fadd)
    mean = b.fdiv(total, b.sitofp(size, F32))
    return b.fdiv(c.real(1.0), c.sqrt(b.fadd(mean, epsilon)))


def _norm(module: ir.Module, machine: Machine) -> None:
    """out[r] = (x[r] * inverse rms) * weight (Zhang and Sennrich 2019); with `index`, of the r-th wanted row."""
    kernel = Kernel(module, machine, "norm")
    c, record = kernel.code, kernel.record
    b = c.b
    first, last = kernel.share(kernel.rows())
    with c.loop(last, first) as row:
        source = c.variable(I64, row)
        with c.when(c.compare(record.index, "!=", 0)):
            c.put(c.index(kernel.passed.wanted_rows, row), source)
        x = c.at(record.x, c.mul(c.get(source), record.x_stride))
        out = c.at(record.out, c.mul(row, record.out_stride))
        inverse = inverse_rms(c, x, record.size, record.epsilon)

        def scaled(at: Value, lanes: int, x: Value = x, out: Value = out, inverse: Value = inverse) -> None:
            y = b.fmul(c.load(x, at, F32, lanes), c.repeated(inverse, lanes))
            c.store(b.fmul(y, c.load(record.weight, at, F32, lanes)), out, at)

        vectors(c, record.size, scaled)
    c.done()


def _own_panels(kernel: Kernel) -> tuple[Value, Value]:
    """The panels that the linear layer before this operation gave to this member, so that no barrier is needed."""
    c, record = kernel.code, kernel.record
    first, last = kernel.share(c.div(record.panels, record.unit))
    return c.mul(first, record.unit), c.mul(last, record.unit)


def _add(module: ir.Module, machine: Machine) -> None:
    """x += y in the columns of this member's panels."""
    kernel = Kernel(module, machine, "add")
    c, record = kernel.code, kernel.record
    first, last = _own_panels(kernel)
    low = c.mul(first, PANEL)
    size = c.sub(c.smaller(c.mul(last, PANEL), record.size), low)
    with c.loop(kernel.passed.rows) as row:
        x = c.at(c.at(record.x, c.mul(row, record.x_stride)), c.mul(low, 4))
        y = c.at(c.at(record.y, c.mul(row, record.y_stride)), c.mul(low, 4))

        def added(at: Value, lanes: int, x: Value = x, y: Value = y) -> None:
            c.store(c.b.fadd(c.load(x, at, F32, lanes), c.load(y, at, F32, lanes)), x, at)

        vectors(c, size, added)
    c.done()


_Gated = Callable[[Code, Any, Value, Value], Value]
"""Of the record and of vectors of gate and up."""


def _product_with(function: Callable[[Code, Value], Value]) -> _Gated:
    return lambda c, record, gate, up: c.b.fmul(function(c, gate), up)


def _bounded(c: Code, record: Any, gate: Value, up: Value) -> Value:
    return clamped(c, gate, up, record.slope, record.limit)


def _activate(module: ir.Module, machine: Machine, name: str, function: _Gated) -> None:
    """out = function(gate, up); panels of gate and of up alternate (Shazeer 2020). `times` lines of each row."""
    kernel = Kernel(module, machine, "activate", name)
    c, record = kernel.code, kernel.record
    first, last = _own_panels(kernel)
    with c.loop(c.mul(kernel.passed.rows, record.times)) as row:
        source = c.at(record.gate_up, c.mul(row, record.gate_up_stride))
        to = c.at(record.out, c.mul(row, record.out_stride))
        with c.loop(c.div(last, 2), c.div(first, 2)) as pair:
            gate, out = c.at(source, c.mul(pair, 8 * PANEL)), c.at(to, c.mul(pair, 4 * PANEL))
            for at in range(0, 4 * PANEL, _BYTES):
                halves = (c.load(gate, at + half, F32, LANES) for half in (0, 4 * PANEL))
                c.store(function(c, record, *halves), out, at)
    c.done()


def _cap(module: ir.Module, machine: Machine) -> None:
    """y = cap * tanh(y / cap) in this member's panels."""
    kernel = Kernel(module, machine, "cap")
    c, record = kernel.code, kernel.record
    first, last = _own_panels(kernel)
    with c.loop(kernel.rows()) as row:
        y = c.at(record.y, c.mul(row, record.y_stride))
        with c.loop(c.mul(last, 4 * PANEL), c.mul(first, 4 * PANEL), _BYTES) as at:
            c.store(capped(c, c.load(y, at, F32, LANES), record.cap), y, at)
    c.done()


def _copy(module: ir.Module, machine: Machine) -> None:
    """out[r] = x[r]: hidden states that are wanted as features."""
    kernel = Kernel(module, machine, "copy")
    c, record = kernel.code, kernel.record
    first, last = kernel.share(kernel.passed.rows)
    with c.loop(last, first) as row:
        x = c.at(record.x, c.mul(row, record.x_stride))
        out = c.at(record.out, c.mul(row, record.out_stride))

        def copied(at: Value, lanes: int, x: Value = x, out: Value = out) -> None:
            c.store(c.load(x, at, F32, lanes), out, at)

        vectors(c, record.size, copied)
    c.done()


def _gate(module: ir.Module, machine: Machine) -> None:
    """out[r] = gelu(x[r]) * y[r]."""
    kernel = Kernel(module, machine, "gate")
    c, record = kernel.code, kernel.record
    first, last = kernel.share(kernel.passed.rows)
    with c.loop(last, first) as row:
        x, y, out = (
            c.at(getattr(record, name), c.mul(row, getattr(record, f"{name}_stride"))) for name in ("x", "y", "out")
        )

        def gated(at: Value, lanes: int, x: Value = x, y: Value = y, out: Value = out) -> None:
            c.store(c.b.fmul(gelu_tanh(c, c.load(x, at, F32, lanes)), c.load(y, at, F32, lanes)), out, at)

        vectors(c, record.size, gated)
    c.done()


def _scale(module: ir.Module, machine: Machine) -> None:
    """x[r] *= factor."""
    kernel = Kernel(module, machine, "scale")
    c, record = kernel.code, kernel.record
    first, last = kernel.share(kernel.passed.rows)
    with c.loop(last, first) as row:
        x = c.at(record.x, c.mul(row, record.x_stride))

        def scaled(at: Value, lanes: int, x: Value = x) -> None:
            c.store(c.b.fmul(c.load(x, at, F32, lanes), c.repeated(record.factor, lanes)), x, at)

        vectors(c, record.size, scaled)
    c.done()


# A part of an adapter: A [inputs][rank padded], B [rank][outputs padded], by address; the outputs' first column, and 1
# where panels of the layer's two halves alternate; the scale by its bits.
PART = ("down", "up", "inputs", "rank", "outputs", "first", "alternating", "scale")


def _low_rank(module: ir.Module, machine: Machine) -> None:
    """y[r] += scale * ((x[r] A^T) B^T) for each part of the row's adapter (Hu et al. 2021), both products as Linear.

    parts: records of PART; adapter_parts int64 [adapters + 1]: the first part of each adapter.
    """
    kernel = Kernel(module, machine, "low_rank")
    product = _product(module, machine)
    c, record, passed = kernel.code, kernel.record, kernel.passed
    scratch = kernel.scratch()
    first, last = kernel.share(passed.rows)
    with c.loop(last, first) as row:
        adapter = c.index(passed.adapters, row)
        with c.when(c.compare(adapter, ">=", 0)):
            begin, end = (c.word(record.adapter_parts, c.add(adapter, n)) for n in (0, 1))
            x, y = c.at(record.x, c.mul(row, record.x_stride)), c.at(record.y, c.mul(row, record.y_stride))
            with c.loop(end, begin) as number:
                part = c.at(record.parts, c.mul(number, 8 * len(PART)))
                down, up = c.address(part, 0), c.address(part, 1)
                inputs, rank, outputs, column, alternating = (c.word(part, n) for n in range(2, 7))
                scale = c.load(part, 8 * 7, F32)
                c.call(product, x, down, inputs, rank, scratch)
                update = c.at(scratch, 4 * MOST_RANK)
                c.call(product, scratch, up, rank, outputs, update)
                with c.loop(outputs) as n:
                    panel = c.mul(c.mul(c.div(n, PANEL), PANEL), alternating)
                    place = c.mul(c.add(c.add(column, n), panel), 4)
                    value = c.fma(scale, c.load(update, c.mul(n, 4), F32), c.load(y, place, F32))
                    c.store(value, y, place)
    c.done()


MOST_RANK = 4096


def _product(module: ir.Module, machine: Machine) -> object:
    """product(x, matrix, terms, outputs, out): out = x M by the program of Linear; matrix [terms][outputs padded]."""
    c = Code(module, machine, "product", (POINTER, POINTER, I64, I64, POINTER))
    x, matrix, terms, outputs, out = c.arguments
    b, kind, zero = c.b, ir.VectorType(F32, LANES), c.vector(F32, 0.0, LANES)
    stride = c.mul(c.ceil_div(outputs, LANES), _BYTES)
    with c.loop(outputs, step=LANES) as n:
        total = c.variable(kind, zero)
        with c.loop(terms, step=128) as start:
            part = c.variable(kind, zero)
            with c.loop(c.smaller(terms, c.add(start, 128)), start) as k:
                w = c.load(c.at(matrix, c.mul(k, stride)), c.mul(n, 4), F32, LANES)
                factor = c.repeated(c.load(x, c.mul(k, 4), F32), LANES)
                c.put(c.fma(factor, w, c.get(part)), part)
            c.put(b.fadd(c.get(total), c.get(part)), total)
        c.store(b.fadd(c.get(total), zero), out, c.mul(n, 4))
    return c.done()

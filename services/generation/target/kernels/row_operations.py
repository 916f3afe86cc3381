"""The row operations of a pass, between its linear layers and attention (`docs/numerics.md`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir

from services.generation.target.kernels.code import F32, I32, I64, POINTER, Code, Value
from services.generation.target.kernels.machine import Machine
from services.generation.target.kernels.records import Kernel
from services.generation.target.kernels.storages import PANEL
from services.generation.target.sizes import MOST_RANK

EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
LOG2_E, ROUND = 1.44269504, 12582912.0  # 1.5 * 2**23: adding and subtracting it rounds to the nearest integer
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # ln 2 in two parts (Cody and Waite)
LOWEST, HIGHEST = -87.0, 88.0
TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
SERIES = tuple(2.0 / odd for odd in range(15, 1, -2))  # of 2 artanh
TANH_NEAR = 0.625  # the polynomial is used below it
SQRT_2_OVER_PI, GELU_CUBE = 0.7978845608028654, 0.044715
LANES = 16  # interleaved partial sums of a mean of squares: part of the definition
KERNELS = (
    "norm", "add", "activate_silu", "activate_gelu", "activate_clamped", "low_rank", "cap", "copy", "gate", "scale",
    "convolve_block",
)  # fmt: skip
PART = ("down", "up", "inputs", "rank", "outputs", "first", "alternating", "scale")
"""Words of a part of an adapter: addresses of A [inputs][rank padded] and B [rank][outputs padded]; the first column of
the outputs, and 1 if panels of the layer's two halves alternate; the scale's bits."""
_BYTES = 4 * LANES
_Gated = Callable[[Code, Any, Value, Value], Value]
"""A function of the record and of vectors of gate and up."""
_Element = Callable[..., Value]
"""A function of the record and of vectors of each input."""


def _lanes(x: Value) -> int:
    return x.type.count if isinstance(x.type, ir.VectorType) else 1


def _real(c: Code, value: float, lanes: int) -> Value:
    return c.vector(F32, float(np.float32(value)), lanes)


def exponential(c: Code, x: Value) -> Value:
    """exp(x) of a float32 or a vector; +0 below LOWEST, exp(HIGHEST) above HIGHEST."""
    b = c.b
    lanes = _lanes(x)
    low, high = _real(c, LOWEST, lanes), _real(c, HIGHEST, lanes)
    bounded = b.select(b.fcmp_ordered(">", x, low), x, low)
    bounded = b.select(b.fcmp_ordered("<", bounded, high), bounded, high)
    n = b.fsub(c.fma(bounded, _real(c, LOG2_E, lanes), _real(c, ROUND, lanes)), _real(c, ROUND, lanes))
    r = c.fma(n, _real(c, -LN2_LOW, lanes), c.fma(n, _real(c, -LN2_HIGH, lanes), bounded))
    p = _real(c, EXP[0], lanes)
    for coefficient in EXP[1:]:
        p = c.fma(p, r, _real(c, coefficient, lanes))
    y = b.fadd(c.fma(b.fmul(p, r), r, r), _real(c, 1.0, lanes))
    whole = b.fptosi(n, ir.VectorType(I32, lanes) if lanes > 1 else I32)
    exponent = b.shl(b.add(whole, c.vector(I32, 127, lanes)), c.vector(I32, 23, lanes))
    result = b.fmul(y, b.bitcast(exponent, x.type))
    result = b.select(b.fcmp_ordered("<", x, low), _real(c, 0.0, lanes), result)
    return b.select(b.fcmp_unordered("uno", x, x), x, result)


def decay(c: Code, x: Value) -> Value:
    """exp(x) for x <= 0, with the bits of `exponential`; NaN for NaN."""
    b, lanes = c.b, _lanes(x)
    shifted = c.fma(x, _real(c, LOG2_E, lanes), _real(c, ROUND, lanes))
    n = b.fsub(shifted, _real(c, ROUND, lanes))
    r = c.fma(n, _real(c, -LN2_LOW, lanes), c.fma(n, _real(c, -LN2_HIGH, lanes), x))
    p = _real(c, EXP[0], lanes)
    for coefficient in EXP[1:]:
        p = c.fma(p, r, _real(c, coefficient, lanes))
    y = b.fadd(c.fma(b.fmul(p, r), r, r), _real(c, 1.0, lanes))
    # The lowest bits of `shifted` are the whole number n, since ROUND's are 0.
    words: Any = ir.VectorType(I32, lanes) if lanes > 1 else I32
    places = c.vector(I32, 23, lanes)
    power = b.add(b.shl(b.bitcast(shifted, words), places), c.vector(I32, 127 << 23, lanes))
    is_low = b.fcmp_ordered("<", x, _real(c, LOWEST, lanes))
    return b.select(is_low, _real(c, 0.0, lanes), b.fmul(y, b.bitcast(power, x.type)))


def hyperbolic_tangent(c: Code, x: Value) -> Value:
    """tanh(x) of a float32 or a vector: a polynomial near 0, else 1 - 2 / (1 + exp(2 |x|)) with the sign of x."""
    b = c.b
    lanes = _lanes(x)
    size, z = c.intrinsic("llvm.fabs", x.type, x), b.fmul(x, x)
    p = _real(c, TANH[0], lanes)
    for coefficient in TANH[1:]:
        p = c.fma(p, z, _real(c, coefficient, lanes))
    one = _real(c, 1.0, lanes)
    far = b.fsub(one, b.fdiv(_real(c, 2.0, lanes), b.fadd(one, exponential(c, b.fadd(size, size)))))
    signed = c.intrinsic("llvm.copysign", x.type, far, x)
    return b.select(b.fcmp_ordered("<", size, _real(c, TANH_NEAR, lanes)), c.fma(b.fmul(p, z), x, x), signed)


def capped(c: Code, x: Value, cap: Value) -> Value:
    """cap * tanh(x / cap); `cap` is a float32."""
    lanes = _lanes(x)
    most = c.repeated(cap, lanes)
    return c.b.fmul(hyperbolic_tangent(c, c.b.fdiv(x, most)), most)


def silu(c: Code, x: Value) -> Value:
    """x / (1 + exp(-x))."""
    lanes = _lanes(x)
    return c.b.fdiv(x, c.b.fadd(_real(c, 1.0, lanes), exponential(c, c.b.fneg(x))))


def sigmoid(c: Code, x: Value) -> Value:
    """1 / (1 + exp(-x))."""
    one = _real(c, 1.0, _lanes(x))
    return c.b.fdiv(one, c.b.fadd(one, exponential(c, c.b.fneg(x))))


def softplus(c: Code, x: Value) -> Value:
    """ln(1 + exp(x)) as max(x, 0) + 2 artanh(u / (2 + u)) with u = exp(-|x|), artanh by its series."""
    b, lanes = c.b, _lanes(x)
    zero = _real(c, 0.0, lanes)
    u = exponential(c, b.fneg(c.intrinsic("llvm.fabs", x.type, x)))
    s = b.fdiv(u, b.fadd(_real(c, 2.0, lanes), u))
    z, p = b.fmul(s, s), _real(c, SERIES[0], lanes)
    for coefficient in SERIES[1:]:
        p = c.fma(p, z, _real(c, coefficient, lanes))
    above = b.select(b.fcmp_ordered(">", x, zero), x, zero)
    return b.fadd(above, c.fma(b.fmul(p, z), s, b.fadd(s, s)))


def gelu_tanh(c: Code, x: Value) -> Value:
    """x / (1 + exp(-2 u)), u = sqrt(2 / pi) * (x + 0.044715 x^3): GELU by tanh (Hendrycks and Gimpel 2016)."""
    b = c.b
    lanes = _lanes(x)
    cube = b.fmul(b.fmul(b.fmul(x, x), x), _real(c, GELU_CUBE, lanes))
    u = b.fmul(b.fadd(x, cube), _real(c, -2.0 * float(np.float32(SQRT_2_OVER_PI)), lanes))
    return b.fdiv(x, b.fadd(_real(c, 1.0, lanes), exponential(c, u)))


def clamped(c: Code, gate: Value, up: Value, slope: Value, limit: Value) -> Value:
    """(gate / (1 + exp(-slope * gate))) * (up + 1), gate and up within the limit (OpenAI 2025); NaN stay NaN."""
    b, lanes = c.b, gate.type.count
    one, most, least = _real(c, 1.0, lanes), c.repeated(limit, lanes), c.repeated(b.fneg(limit), lanes)
    gate, up = (b.select(b.fcmp_ordered(">", x, most), most, x) for x in (gate, up))
    up = b.select(b.fcmp_ordered("<", up, least), least, up)
    power = exponential(c, b.fneg(b.fmul(gate, c.repeated(slope, lanes))))
    return b.fmul(b.fdiv(gate, b.fadd(one, power)), b.fadd(up, one))


def build(module: ir.Module, machine: Machine) -> None:
    _norm(module, machine)
    _add(module, machine)
    for name, function in (("silu", silu), ("gelu", gelu_tanh)):
        _activate(module, machine, f"activate_{name}", _product_with(function))
    _activate(module, machine, "activate_clamped", _bounded)
    _low_rank(module, machine)
    _cap(module, machine)
    _each_row(module, machine, "copy", ("x",), "out", _copied)
    _each_row(module, machine, "gate", ("x", "y"), "out", _gated)
    _each_row(module, machine, "scale", ("x",), "x", _scaled)
    _convolve_block(module, machine)


def vectors(c: Code, size: Value, wide: Callable[[Value, int], None]) -> None:
    """Call `wide(byte offset, lanes)` for all elements: LANES at a time, then one by one."""
    whole = c.sub(size, c.rem(size, LANES))
    with c.loop(whole, step=LANES) as i:
        wide(c.mul(i, 4), LANES)
    with c.loop(size, whole) as i:
        wide(c.mul(i, 4), 1)


def elementwise(c: Code, size: Value, out: Value, inputs: Sequence[Value], compute: Callable[..., Value]) -> None:
    """out = compute(*inputs), of [size] each."""
    vectors(c, size, lambda at, lanes: c.store(compute(*(c.load(x, at, F32, lanes) for x in inputs)), out, at))


def scaled(c: Code, x: Value, factor: Value) -> Value:
    """x times a float32."""
    return c.b.fmul(x, c.repeated(factor, _lanes(x)))


def inverse_rms(c: Code, row: Value, size: Value, epsilon: Value) -> Value:
    """1 / sqrt(mean of squares + epsilon) of [size]."""
    mean = c.b.fdiv(sum_of_squares(c, row, size), c.b.sitofp(size, F32))
    return c.b.fdiv(c.real(1.0), c.sqrt(c.b.fadd(mean, epsilon)))


def normalise(c: Code, x: Value, out: Value, weight: Value, size: Value, epsilon: Value) -> None:
    """out = (x * inverse rms) * weight, of [size] each (Zhang and Sennrich 2019); `out` may be `x`."""
    inverse = inverse_rms(c, x, size, epsilon)
    elementwise(c, size, out, (x, weight), lambda value, by: c.b.fmul(scaled(c, value, inverse), by))


def sum_of_squares(c: Code, row: Value, size: Value) -> Value:
    """The sum of squares of [size]: square i is added to lane i % LANES by fma, then lanes are folded."""
    sums = c.variable(c.vector(F32, 0.0, LANES))
    whole = c.sub(size, c.rem(size, LANES))
    with c.loop(whole, step=LANES) as i:
        x = c.load(row, c.mul(i, 4), F32, LANES)
        c.put(c.fma(x, x, c.get(sums)), sums)
    rest = c.stack_alloc(_BYTES)
    with c.when(c.compare(whole, "<", size)):
        c.store(c.get(sums), rest, 0)
        with c.loop(size, whole) as i:
            x, lane = c.load(row, c.mul(i, 4), F32), c.mul(c.rem(i, LANES), 4)
            c.store(c.fma(x, x, c.load(rest, lane, F32)), rest, lane)
        c.put(c.load(rest, 0, F32, LANES), sums)
    return c.folded(c.get(sums), c.b.fadd)


def _norm(module: ir.Module, machine: Machine) -> None:
    """out[r] = (x[r] * inverse rms) * weight (Zhang and Sennrich 2019); with `index`, x of the r-th wanted row."""
    kernel = Kernel(module, machine, "norm")
    c, record = kernel.code, kernel.record
    first, last = kernel.share(kernel.rows())
    with c.loop(last, first) as row:
        source = c.variable(row)
        with c.when(c.compare(record.index, "!=", 0)):
            c.put(c.index(kernel.passed.wanted_rows, row), source)
        x = c.at(record.x, c.mul(c.get(source), record.x_stride))
        out = c.at(record.out, c.mul(row, record.out_stride))
        normalise(c, x, out, record.weight, record.size, record.epsilon)
    c.done()


def _add(module: ir.Module, machine: Machine) -> None:
    """x += y in the columns of this member's panels."""
    kernel = Kernel(module, machine, "add")
    c, record = kernel.code, kernel.record
    first, last = kernel.panels()
    low = c.mul(first, PANEL)
    size = c.sub(c.smaller(c.mul(last, PANEL), record.size), low)
    with c.loop(kernel.passed.rows) as row:
        x = c.at(c.at(record.x, c.mul(row, record.x_stride)), c.mul(low, 4))
        y = c.at(c.at(record.y, c.mul(row, record.y_stride)), c.mul(low, 4))
        elementwise(c, size, x, (x, y), c.b.fadd)
    c.done()


def _product_with(function: Callable[[Code, Value], Value]) -> _Gated:
    return lambda c, record, gate, up: c.b.fmul(function(c, gate), up)


def _bounded(c: Code, record: Any, gate: Value, up: Value) -> Value:
    return clamped(c, gate, up, record.slope, record.limit)


def _activate(module: ir.Module, machine: Machine, name: str, function: _Gated) -> None:
    """out = function(gate, up); panels of gate and of up alternate (Shazeer 2020). `times` lines of each row."""
    kernel = Kernel(module, machine, "activate", name)
    c, record = kernel.code, kernel.record
    first, last = kernel.panels()
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
    first, last = kernel.panels()
    with c.loop(kernel.rows()) as row:
        y = c.at(record.y, c.mul(row, record.y_stride))
        with c.loop(c.mul(last, 4 * PANEL), c.mul(first, 4 * PANEL), _BYTES) as at:
            c.store(capped(c, c.load(y, at, F32, LANES), record.cap), y, at)
    c.done()


def _each_row(module: ir.Module, machine: Machine, name: str, inputs: Sequence[str], out: str, of: _Element) -> None:
    """out[r] = of(inputs[r]), element by element."""
    kernel = Kernel(module, machine, name)
    c, record = kernel.code, kernel.record
    first, last = kernel.share(kernel.passed.rows)
    with c.loop(last, first) as row:
        *sources, to = (
            c.at(getattr(record, each), c.mul(row, getattr(record, f"{each}_stride"))) for each in (*inputs, out)
        )
        elementwise(c, record.size, to, sources, partial(of, c, record))
    c.done()


def _copied(c: Code, record: Any, x: Value) -> Value:
    return x


def _gated(c: Code, record: Any, x: Value, y: Value) -> Value:
    return c.b.fmul(gelu_tanh(c, x), y)


def _scaled(c: Code, record: Any, x: Value) -> Value:
    return scaled(c, x, record.factor)


def _convolve_block(module: ir.Module, machine: Machine) -> None:
    """x[r] = the sum over taps t of (weight[t] + the row's delta of t) * x[r - t], of rows of the same block.

    weight [taps][size]; of a row, deltas [taps][groups] from column `first` on, one for `group` columns. A member
    computes whole groups, the last row first, for later rows read x before it changes.
    """
    kernel = Kernel(module, machine, "convolve_block")
    c, record, rows = kernel.code, kernel.record, kernel.passed.rows
    groups = c.div(record.size, record.group)
    first, last = kernel.share(groups)
    with c.loop(rows) as n:
        row = c.sub(c.sub(rows, 1), n)
        x = c.at(record.x, c.mul(row, record.x_stride))
        deltas = c.at(record.deltas, c.add(c.mul(row, record.deltas_stride), c.mul(record.first, 4)))
        seen = c.smaller(c.add(c.rem(row, record.block), 1), record.taps)
        with c.loop(last, first) as group:
            column = c.mul(c.mul(group, record.group), 4)

            def convolved(at: Value, lanes: int) -> None:
                total = c.variable(c.vector(F32, 0.0, lanes))
                with c.loop(seen) as tap:
                    weight = c.load(
                        c.at(record.weight, c.mul(c.mul(tap, record.size), 4)), c.add(column, at), F32, lanes
                    )
                    delta = c.load(deltas, c.mul(c.add(c.mul(tap, groups), group), 4), F32)
                    before = c.at(x, c.sub(c.add(column, at), c.mul(tap, record.x_stride)))
                    factor = c.b.fadd(weight, c.repeated(delta, lanes))
                    c.put(c.fma(c.load(before, 0, F32, lanes), factor, c.get(total)), total)
                c.store(c.get(total), x, c.add(column, at))

            vectors(c, record.group, convolved)
    c.done()


def _low_rank(module: ir.Module, machine: Machine) -> None:
    """y[r] += scale * ((x[r] A^T) B^T) for each part of the row's adapter (Hu et al. 2021), both products as in Linear.

    parts: records of PART; adapter_parts int64 [adapters + 1]: the first part of each adapter.
    """
    kernel = Kernel(module, machine, "low_rank")
    product = _product(module, machine)
    c, record, passed = kernel.code, kernel.record, kernel.passed
    scratch = kernel.scratch()
    first, last = kernel.share(passed.rows)
    with c.loop(last, first) as row:
        adapter = c.index(passed.adapter_slots, row)
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


def _product(module: ir.Module, machine: Machine) -> object:
    """product(x, matrix, terms, outputs, out): out = x M as in Linear; matrix [terms][outputs padded]."""
    c = Code(module, machine, "product", (POINTER, POINTER, I64, I64, POINTER))
    x, matrix, terms, outputs, out = c.arguments
    b, zero = c.b, c.vector(F32, 0.0, LANES)
    stride = c.mul(c.ceil_div(outputs, LANES), _BYTES)
    with c.loop(outputs, step=LANES) as n:
        total = c.variable(zero)
        with c.loop(terms, step=128) as start:
            part = c.variable(zero)
            with c.loop(c.smaller(terms, c.add(start, 128)), start) as k:
                w = c.load(c.at(matrix, c.mul(k, stride)), c.mul(n, 4), F32, LANES)
                factor = c.repeated(c.load(x, c.mul(k, 4), F32), LANES)
                c.put(c.fma(factor, w, c.get(part)), part)
            c.put(b.fadd(c.get(total), c.get(part)), total)
        c.store(b.fadd(c.get(total), zero), out, c.mul(n, 4))
    return c.done()

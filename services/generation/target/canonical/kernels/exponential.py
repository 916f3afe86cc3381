"""e to the power of x, and what is made of it: `docs/numerics.md`, Elementary functions."""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from services.generation.target.canonical.kernels.code import F32, I32, Code, Value

EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
LOG2_E, ROUND = 1.44269504, 12582912.0  # 1.5 * 2**23: adding and subtracting it rounds to the nearest integer
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # ln 2 in two parts (Cody and Waite)
LOWEST, HIGHEST = -87.0, 88.0
TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
TANH_NEAR = 0.625  # below it the polynomial is taken
SQRT_2_OVER_PI, GELU_CUBE = 0.7978845608028654, 0.044715


def _real(c: Code, value: float, lanes: int) -> Value:
    return c.vector(F32, float(np.float32(value)), lanes)


def exponential(c: Code, x: Value) -> Value:
    """exp(x) of a float32 or a vector; +0 below LOWEST, exp(HIGHEST) above HIGHEST."""
    b = c.b
    lanes = x.type.count if isinstance(x.type, ir.VectorType) else 1
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


def hyperbolic_tangent(c: Code, x: Value) -> Value:
    """tanh(x) of a float32 or a vector: a polynomial near 0, else 1 - 2 / (1 + exp(2 |x|)) with the sign of x."""
    b = c.b
    lanes = x.type.count if isinstance(x.type, ir.VectorType) else 1
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
    lanes = x.type.count if isinstance(x.type, ir.VectorType) else 1
    most = c.repeated(cap, lanes)
    return c.b.fmul(hyperbolic_tangent(c, c.b.fdiv(x, most)), most)


def silu(c: Code, x: Value) -> Value:
    """x / (1 + exp(-x))."""
    lanes = x.type.count if isinstance(x.type, ir.VectorType) else 1
    return c.b.fdiv(x, c.b.fadd(_real(c, 1.0, lanes), exponential(c, c.b.fneg(x))))


def gelu_tanh(c: Code, x: Value) -> Value:
    """x / (1 + exp(-2 u)), u = sqrt(2 / pi) * (x + 0.044715 x^3): GELU by tanh (Hendrycks and Gimpel 2016)."""
    b = c.b
    lanes = x.type.count if isinstance(x.type, ir.VectorType) else 1
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

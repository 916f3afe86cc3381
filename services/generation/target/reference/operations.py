"""Elementary functions, norm, linear layer and adapter: `docs/numerics.md` from Ground rules to Adapters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Operand = Float32 | np.float32

ZERO, ONE = np.float32(0), np.float32(1)
BLOCK = 128  # terms of a partial sum of a linear layer
_PARTIAL_SUMS = 16  # of a norm

_LOG2_E = np.float32(1.44269504)
_ROUND = np.float32(12582912)
_LN2 = np.float32(-0.693359375), np.float32(2.12194440e-4)
_EXPONENTIAL = tuple(
    np.float32(c)
    for c in (
        1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1,
    )
)  # fmt: skip
_TANH = tuple(
    np.float32(c) for c in (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
)
_GELU_CUBE = np.float32(0.044715)
_GELU_SCALE = np.float32(-2) * np.float32(0.7978845608)


@np.errstate(all="ignore")
def fma(a: Operand, b: Operand, c: Operand) -> Float32:
    """a * b + c, rounded once, for arrays that numpy broadcasts; subnormals, infinities and NaN as IEEE 754 has them.

    The product is exact in float64. Its sum with c is rounded there to odd (where it is not exact, to that neighbour
    whose last bit is set), after which rounding to float32 gives what rounding the exact sum would: Boldo and
    Melquiond, "Emulation of a FMA and correctly rounded sums", 2008. The common rounding to nearest would round some
    sums twice.
    """
    product, term = np.multiply(a, b, dtype=np.float64), np.asarray(c, np.float64)
    total = np.asarray(product + term)
    rest = total - product  # Knuth's TwoSum: `error` is exactly what `total` lacks
    error = (product - (total - rest)) + (term - rest)
    bits = total.view(np.int64)
    away = np.where((error > 0) == (total > 0), 1, -1)  # towards the exact sum, from or to zero
    inexact = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
    odd = np.where(inexact, bits + away, bits).view(np.float64)
    return np.asarray(odd, np.float32)


def larger(a: Float32, b: Float32) -> Float32:
    """The page's max(a, b)."""
    return np.where(b > a, b, a)


def fold(values: Float32, join: Callable[[Float32, Float32], Float32]) -> Float32:
    """Fold the last axis, of 2^m elements, to nothing: [..., 2^m] to [...]."""
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        values = join(values[..., :half], values[..., half:])
    return values[..., 0]


@np.errstate(all="ignore")
def add(a: Float32, b: Operand) -> Float32:
    return a + b


@np.errstate(all="ignore")
def exp(x: Float32) -> Float32:
    within = np.where(x >= -87, np.where(x < 88, x, np.float32(88)), ZERO)
    n = fma(within, _LOG2_E, _ROUND) - _ROUND
    r = fma(n, _LN2[1], fma(n, _LN2[0], within))
    p = np.full_like(r, _EXPONENTIAL[0])
    for coefficient in _EXPONENTIAL[1:]:
        p = fma(p, r, coefficient)
    power = ((n.astype(np.int32) + 127) << 23).view(np.float32)  # 2^n, by the bits of its exponent
    result = (fma(p * r, r, r) + ONE) * power
    return np.where(np.isnan(x), x, np.where(x < -87, ZERO, result))


@np.errstate(all="ignore")
def tanh(x: Float32) -> Float32:
    z = x * x
    p = np.full_like(x, _TANH[0])
    for coefficient in _TANH[1:]:
        p = fma(p, z, coefficient)
    size = np.abs(x)
    far = ONE - np.float32(2) / (ONE + exp(size + size))
    return np.where(size < np.float32(0.625), fma(p * z, x, x), np.copysign(far, x))


@np.errstate(all="ignore")
def capped(x: Float32, cap: np.float32) -> Float32:
    return tanh(x / cap) * cap


@np.errstate(all="ignore")
def silu(x: Float32) -> Float32:
    return x / (ONE + exp(-x))


@np.errstate(all="ignore")
def gelu(x: Float32) -> Float32:
    u = (x + ((x * x) * x) * _GELU_CUBE) * _GELU_SCALE
    return x / (ONE + exp(u))


@np.errstate(all="ignore")
def clamped(gate: Float32, up: Float32, slope: np.float32, limit: np.float32) -> Float32:
    gate = np.where(gate > limit, limit, gate)
    up = np.where(up > limit, limit, np.where(up < -limit, -limit, up))
    inner: Float32 = (gate / (ONE + exp(-(gate * slope)))) * (up + ONE)
    return inner


ACTIVATIONS: dict[str, Callable[[Float32], Float32]] = {"silu": silu, "gelu": gelu}


def embedding(weight: Float32, tokens: NDArray[np.int64], factor: np.float32 = ONE) -> Float32:
    """Rows of weight [vocabulary, n]: [tokens, n]."""
    return weight[tokens] * factor + ZERO


@np.errstate(all="ignore")
def rms_norm(v: Float32, weight: Float32, epsilon: np.float32) -> Float32:
    """Over the last axis of v [..., n]; weight [n]."""
    n = v.shape[-1]
    sums = np.zeros((*v.shape[:-1], _PARTIAL_SUMS), np.float32)
    for first in range(0, n, _PARTIAL_SUMS):
        some = v[..., first : first + _PARTIAL_SUMS]
        lanes = some.shape[-1]
        sums[..., :lanes] = fma(some, some, sums[..., :lanes])
    mean = fold(sums, add) / np.float32(n)
    inverse = ONE / np.sqrt(mean + epsilon)
    scaled: Float32 = (v * inverse[..., None]) * weight
    return scaled


def linear(x: Float32, weight: Float32, bias: Operand = ZERO) -> Float32:
    """x [..., K], weight [N, K], bias [N]: [..., N]."""
    outputs, inputs = weight.shape
    total = np.zeros((*x.shape[:-1], outputs), np.float32)
    for first in range(0, inputs, BLOCK):
        part = np.zeros_like(total)
        for k in range(first, min(first + BLOCK, inputs)):
            part = fma(x[..., k, None], weight[:, k], part)
        total = add(total, part)
    return add(total, bias)


def low_rank(y: Float32, x: Float32, down: Float32, up: Float32, scale: np.float32) -> Float32:
    """y [..., N] of a module that read x [..., K], with the update (A = down [r, K], B = up [N, r], s = scale)."""
    inner = linear(x, down)
    return fma(scale, linear(inner, up), y)

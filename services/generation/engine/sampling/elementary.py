"""exp and log in float64 as programs of our own: additions, products, quotients and bits (docs/numerics.md).

A C library's exp differs from the next one's in the last bit; these give the same bits on every CPU. Both are within
1 ulp of the true value.
"""

from __future__ import annotations

import math

import numpy as np

from services.generation.engine.sampling.compiled import compiled, inlined

LOG2_E = float.fromhex("0x1.71547652b82fep+0")
LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")  # 32 bits of ln 2, so that k * LN2_HIGH is exact (Cody and Waite)
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
LOWEST = -708.0  # exp64 is 0 below: its values there are near the subnormal ones
HIGHEST = 709.0  # and infinite above

_ROUND = float.fromhex("0x1.8p+52")  # adding it rounds to a whole number, which is then in the low bits
_ROUND_BITS = np.int64(0x4338000000000000)  # of _ROUND
_BIAS = np.int64(1023)
_FRACTION = np.int64(52)  # bits of a float64 below its exponent
_FRACTION_BITS = np.int64(2**52 - 1)
_HALF_ROOT = np.int64(0x3FE6A09E667F3BCD)  # bits of sqrt(1/2)
_ONE_BITS = np.int64(0x3FF0000000000000)
_LEAST_NORMAL = float.fromhex("0x1p-1022")

_E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10, _E11, _E12, _E13 = (1.0 / math.factorial(n) for n in range(2, 14))
_L1, _L2, _L3, _L4, _L5, _L6, _L7, _L8, _L9, _L10 = (2.0 / (2 * n + 1) for n in range(1, 11))


@inlined
def exp64(x: float) -> float:
    """e**x. 1 at ±0, 0 below LOWEST, inf above HIGHEST, NaN of NaN."""
    inside = x if x > LOWEST else LOWEST
    shifted = inside * LOG2_E + _ROUND
    k = shifted - _ROUND
    r = (inside - k * LN2_HIGH) - k * LN2_LOW
    high = _E8 + r * (_E9 + r * (_E10 + r * (_E11 + r * (_E12 + r * _E13))))
    q = _E2 + r * (_E3 + r * (_E4 + r * (_E5 + r * (_E6 + r * (_E7 + r * high)))))
    power = ((np.float64(shifted).view(np.int64) - _ROUND_BITS) + _BIAS) << _FRACTION
    value = (1.0 + (r + (r * r) * q)) * np.int64(power).view(np.float64)
    limited = np.inf if x > HIGHEST else value
    return x if x != x else (0.0 if x < LOWEST else limited)


@compiled
def log64(x: float) -> float:
    """The natural logarithm. -inf at ±0, inf at inf, NaN below 0 and of NaN; exactly 0 at 1."""
    if not 0.0 < x < np.inf:
        return -np.inf if x == 0.0 else (x if x > 0.0 else np.nan)
    scaled = x * 18014398509481984.0 if x < _LEAST_NORMAL else x  # 2**54
    shifted = np.float64(scaled).view(np.int64) + (_ONE_BITS - _HALF_ROOT)
    k = np.float64((shifted >> _FRACTION) - _BIAS - (np.int64(54) if x < _LEAST_NORMAL else np.int64(0)))
    f = np.int64((shifted & _FRACTION_BITS) + _HALF_ROOT).view(np.float64) - 1.0
    s = f / (2.0 + f)
    z = s * s
    high = _L6 + z * (_L7 + z * (_L8 + z * (_L9 + z * _L10)))
    r = z * (_L1 + z * (_L2 + z * (_L3 + z * (_L4 + z * (_L5 + z * high)))))
    half_square = (0.5 * f) * f
    return (((s * (half_square + r) + k * LN2_LOW) - half_square) + f) + k * LN2_HIGH

"""The fused multiply-add of float32, on any machine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Operand = Float32 | np.float32


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

"""Square roots of sizes, as binary64 rounded once: C's `pow` may round as it likes, and a libm elsewhere does."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_EVEN, Context, Decimal

_DIGITS = Context(prec=40, rounding=ROUND_HALF_EVEN)


def root(x: float) -> float:
    """x^(1/2), as IEEE 754 has it."""
    return math.sqrt(x)


def inverse_root(x: float) -> float:
    """x^(-1/2)"""
    return float(_DIGITS.divide(Decimal(1), _DIGITS.sqrt(Decimal(x))))

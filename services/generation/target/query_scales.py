"""Factors of queries at each position: `docs/numerics.md`, Rotations."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from services.generation.target.config.layer_choices import Temperature

_DIGITS = 40


def query_scales(scale: float, temperature: Temperature | None, positions: int) -> NDArray[np.float32]:
    """[positions]: `scale`, with a temperature times 1 + its scale * ln(1 + (p + 1) div its floor), rounded to binary64
    and then to float32.
    """
    if temperature is None:
        return np.full(positions, scale, np.float32)
    with localcontext(Context(prec=_DIGITS, rounding=ROUND_HALF_EVEN)):
        strength, whole = Decimal(temperature.scale), Decimal(scale)
        steps = [float(whole * (1 + strength * Decimal(1 + n).ln())) for n in range(positions // temperature.floor + 1)]
    each = np.array(steps, np.float64).astype(np.float32)
    return each[(np.arange(positions) + 1) // temperature.floor]

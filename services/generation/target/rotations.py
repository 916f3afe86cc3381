"""Tables of rotary position embeddings (Su et al. 2021): `docs/numerics.md`, Rotations; no library's sine is used."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from services.generation.target.config.layer_choices import Temperature

_SCALE_DIGITS = 40


def query_scales(scale: float, temperature: Temperature | None, positions: int) -> NDArray[np.float32]:
    """[positions]: `scale`, with a temperature times 1 + its scale * ln(1 + (p + 1) div its floor), rounded to binary64
    and then to float32.
    """
    if temperature is None:
        return np.full(positions, scale, np.float32)
    with localcontext(Context(prec=_SCALE_DIGITS, rounding=ROUND_HALF_EVEN)):
        strength, whole = Decimal(temperature.scale), Decimal(scale)
        steps = [float(whole * (1 + strength * Decimal(1 + n).ln())) for n in range(positions // temperature.floor + 1)]
    each = np.array(steps, np.float64).astype(np.float32)
    return each[(np.arange(positions) + 1) // temperature.floor]


Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

_TWO_OVER_PI = float.fromhex("0x1.45f306dc9c883p-1")
_HALF_PI = tuple(  # pi / 2 in three parts; the first two have 33 bits, so that a multiple by 20 bits is exact
    float.fromhex(part) for part in ("0x1.921fb544p+0", "0x1.0b4611a6p-34", "0x1.3198a2e037073p-69")
)
_SINE = tuple(
    float.fromhex(part)
    for part in (
        "-0x1.5555555555549p-3", "0x1.111111110f8a6p-7", "-0x1.a01a019c161d5p-13", "0x1.71de357b1fe7dp-19",
        "-0x1.ae5e68a2b9cebp-26", "0x1.5d93a5acfd57cp-33",
    )
)  # fmt: skip
_COSINE = tuple(
    float.fromhex(part)
    for part in (
        "0x1.555555555554cp-5", "-0x1.6c16c16c15177p-10", "0x1.a01a019cb1590p-16", "-0x1.27e4f809c52adp-22",
        "0x1.1ee9ebdb4b1c4p-29", "-0x1.8fae9be8838d4p-37",
    )
)  # fmt: skip


def rotations(frequencies: Sequence[float], scaling: float, positions: int) -> tuple[Float32, Float32]:
    """cos and sin of position * frequency, each times `scaling`: [positions, len(frequencies)].

    The product is float32's; its cosine and sine are computed in float64 and rounded once.
    """
    angles = np.arange(positions, dtype=np.float32)[:, None] * np.array(frequencies, np.float32)[None]
    sine, cosine = _sine_and_cosine(angles.astype(np.float64))
    factor = np.float32(scaling)
    return cosine.astype(np.float32) * factor, sine.astype(np.float32) * factor


def _sine_and_cosine(x: Float64) -> tuple[Float64, Float64]:
    """Of x from 0 to 2^20 * pi / 2, by reduction to a quarter turn and two polynomials (those of fdlibm)."""
    turns = np.rint(x * _TWO_OVER_PI)
    r = x - turns * _HALF_PI[0]
    r = (r - turns * _HALF_PI[1]) - turns * _HALF_PI[2]
    z = r * r
    sine = r + (r * z) * _polynomial(_SINE, z)
    cosine = (1.0 - 0.5 * z) + (z * z) * _polynomial(_COSINE, z)
    quarter = turns.astype(np.int64) % 4
    swapped = quarter % 2 == 1
    s, c = np.where(swapped, cosine, sine), np.where(swapped, sine, cosine)
    return np.where(quarter >= 2, -s, s), np.where((quarter == 1) | (quarter == 2), -c, c)


def _polynomial(coefficients: Sequence[float], z: Float64) -> Float64:
    """By Horner's rule, a product and a sum at a time, from the last coefficient."""
    total = np.full_like(z, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * z + coefficient
    return total

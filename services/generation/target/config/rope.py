"""Rotary position embeddings (Su et al. 2021), `docs/numerics.md`: configurations, inverse frequencies, tables.

No library's sine or power is used: values are computed in decimal, in integers, or by polynomials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal, Overflow, localcontext
from typing import Any

import numpy as np

from services.generation.target.arrays import Float32, Float64
from services.generation.target.errors import ConfigInvalid, UnsupportedArchitecture
from services.generation.target.family import Temperature

_EXACT = Context(prec=40, rounding=ROUND_HALF_EVEN)
_ONE = Decimal(1)
_PI = Decimal("3.14159265358979323846264338327950288419716939937511")
_APART = Decimal("0.001")  # added to the end of yarn's ramp if it equals the start
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

Parameters = Mapping[str, Any]
Frequencies = list[Decimal]
Scaled = tuple[Frequencies, Decimal]
"""Frequencies, and the factor of cos and sin."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rotation of heads in one layer: element i with element i + n for n inverse frequencies or, if `interleaved`,
    element 2i with element 2i + 1. Elements after these stay; without frequencies all do.

    If there are `long` frequencies, they are used for a context of more than `trained` tokens (LongRoPE, Ding et al.
    2024). The served context decides and not the length of a sequence: cached keys cannot be rotated again.
    """

    inverse_frequencies: tuple[float, ...]  # exact float32 values
    factor: float = 1.0  # of cos and sin
    long: tuple[float, ...] = ()
    trained: int = 0
    interleaved: bool = False

    def within(self, context: int) -> tuple[float, ...]:
        """The inverse frequencies in a context of `context` tokens."""
        return self.long if self.long and context > self.trained else self.inverse_frequencies


NO_ROTATION = Rotation(())
"""The rotation of layers without rotary position embeddings."""


def rotation_of(
    parameters: Mapping[str, Any], head_dim: int, context: int, divisors: Sequence[float] = (), *, partial: bool = False
) -> Rotation:
    """The rotation for transformers' `rope_parameters`, heads of `head_dim` and a model of `context` positions.

    `dynamic` changes all frequencies once a sequence exceeds the trained length: the bits of a row would depend on
    later tokens. It is served up to that length, where it equals `default`.

    Args:
        divisors: of the frequencies, [head_dim / 2] or none.
        partial: whether `partial_rotary_factor` may be below 1.

    Raises:
        UnsupportedArchitecture: an unknown kind; the message lists the known ones.
        ConfigInvalid: a number is missing or out of range.
    """
    kind, share = parameters.get("rope_type", "default"), parameters.get("partial_rotary_factor") or 1.0
    if kind not in tuple(KINDS):  # a tuple, since `kind` may be unhashable
        raise UnsupportedArchitecture(f"rope_type: {kind!r} is not supported; supported: {', '.join(KINDS)}")
    proportional = kind == "proportional"
    if share != 1.0 and not (partial or proportional):
        raise UnsupportedArchitecture(f"partial_rotary_factor: {share!r} is not supported in this family; supported: 1")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise ConfigInvalid(f"rope_parameters: partial_rotary_factor is {share!r}; expected a number up to 1")
    dim = head_dim if proportional else int(head_dim * share)
    if dim % 2 or not dim:
        raise ConfigInvalid(
            f"rope_parameters: partial_rotary_factor {share} rotates {dim} elements; expected an even number"
        )
    frequencies, factor = rotary(parameters, dim, context, divisors)
    if kind != "longrope":
        return Rotation(frequencies, factor)
    long, _ = rotary({**parameters, "short_factor": parameters.get("long_factor")}, dim, context)
    return Rotation(frequencies, factor, long, int(parameters["original_max_position_embeddings"]))


def power_of_e(exponents: Float32) -> Float32:
    """e to the power of each exponent, computed in decimal and rounded to float32; infinity if it is too large."""
    with localcontext(_EXACT) as context, np.errstate(over="ignore"):
        context.traps[Overflow] = False
        return np.array([_float32(Decimal(float(x)).exp()) for x in exponents], np.float32)


def decay_rates(written: Float32, *, converted: bool) -> Float32:
    """Decay rates of a state. A checkpoint has their logarithms, a `converted` one the negated rates."""
    return -written if converted else power_of_e(written)


def rotary(
    parameters: Parameters, dim: int, context: int, divisors: Sequence[float] = ()
) -> tuple[tuple[float, ...], float]:
    """Inverse frequencies [dim / 2], and the factor of cos and sin; exact float32 values.

    Args:
        parameters: transformers' `rope_parameters`; `rope_type` is one of `KINDS`.
        dim: rotated elements of a head.
        context: positions that the model was trained for.
        divisors: of the frequencies, [dim / 2] or none; Llama 3's GGUF files have them.

    Raises:
        ConfigInvalid: a number is missing or out of range; the message names it.
    """
    with localcontext(_EXACT), np.errstate(over="ignore"):
        log_theta = _number(parameters, "rope_theta", above=1).ln()
        plain = [(-log_theta * 2 * i / dim).exp() for i in range(dim // 2)]
        frequencies, factor = KINDS[parameters.get("rope_type", "default")](parameters, plain, log_theta, context)
        if divisors:
            frequencies = [f / Decimal(d) for f, d in zip(frequencies, divisors, strict=True)]
        found = *map(_float32, frequencies), _float32(factor)
    if not all(map(math.isfinite, found)):
        raise ConfigInvalid(f"rope_parameters: {dict(parameters)!r:.200}: a factor is too small or too large")
    return found[:-1], found[-1]


def _default(parameters: Parameters, plain: Frequencies, log_theta: Decimal, context: int) -> Scaled:
    return plain, _ONE


def _linear(parameters: Parameters, plain: Frequencies, log_theta: Decimal, context: int) -> Scaled:
    factor = _number(parameters, "factor")
    return [f / factor for f in plain], _ONE


def _llama3(parameters: Parameters, plain: Frequencies, log_theta: Decimal, context: int) -> Scaled:
    """Short waves stay, long waves are stretched by `factor`, waves between them in part."""
    factor = _number(parameters, "factor")
    low, high = (_number(parameters, f"{name}_freq_factor") for name in ("low", "high"))
    trained = _number(parameters, "original_max_position_embeddings", context)

    def scaled(f: Decimal) -> Decimal:
        turns = trained * f / (2 * _PI)  # of this frequency, within the original trained length
        if turns < low:
            return f / factor
        if turns > high:
            return f
        smooth = (turns - low) / (high - low)
        return (1 - smooth) * f / factor + smooth * f

    return [scaled(f) for f in plain], _ONE


def _yarn(parameters: Parameters, plain: Frequencies, log_theta: Decimal, context: int) -> Scaled:
    """Frequencies below a ramp stay, those above it are divided by `factor` (Peng et al. 2023)."""
    trained = _number(parameters, "original_max_position_embeddings", context)
    factor = _number(parameters, "factor", context / trained)
    dim = 2 * len(plain)

    def place(turns: Decimal) -> Decimal:
        """The fractional index of the frequency that makes `turns` turns within the trained length."""
        return dim * (trained / (turns * 2 * _PI)).ln() / (2 * log_theta)

    first, last = place(_number(parameters, "beta_fast", 32)), place(_number(parameters, "beta_slow", 1))
    if parameters.get("truncate", True):
        first, last = first.to_integral_value(ROUND_FLOOR), last.to_integral_value(ROUND_CEILING)
    first, last = max(first, Decimal(0)), min(last, Decimal(dim - 1))
    if first == last:
        last += _APART
    ramp = [min(max((i - first) / (last - first), Decimal(0)), _ONE) for i in range(len(plain))]
    frequencies = [f / factor * share + f * (1 - share) for f, share in zip(plain, ramp, strict=True)]
    return frequencies, _attention_factor(parameters, factor)


def _longrope(parameters: Parameters, plain: Frequencies, log_theta: Decimal, context: int) -> Scaled:
    """Each frequency has a divisor of its own (Ding et al. 2024): `short_factor`, up to the original trained length."""
    trained = _number(parameters, "original_max_position_embeddings", above=1)
    factor = _number(parameters, "factor", context / trained)
    divisors = _divisors(parameters, "short_factor", len(plain))
    if parameters.get("attention_factor") is not None:
        attention = _number(parameters, "attention_factor")
    else:
        attention = (1 + factor.ln() / trained.ln()).sqrt() if factor > 1 else _ONE
    return [f / divisor for f, divisor in zip(plain, divisors, strict=True)], attention


def _proportional(parameters: Parameters, plain: Frequencies, log_theta: Decimal, context: int) -> Scaled:
    """The first share of the frequencies; the others are 0, so that their elements stay."""
    share, factor = parameters.get("partial_rotary_factor"), _number(parameters, "factor", 1)
    kept = len(plain) if share is None else int(share * 2 * len(plain) // 2)
    return [f / factor if i < kept else Decimal(0) for i, f in enumerate(plain)], _ONE


def _divisors(parameters: Parameters, name: str, count: int) -> list[Decimal]:
    """Divisors of the frequencies, rounded to float32 as in a GGUF file."""
    found = parameters.get(name)
    numbers = found if isinstance(found, list) else []
    whole = [isinstance(d, int | float) and not isinstance(d, bool) and 0 < d < math.inf for d in numbers]
    if len(numbers) != count or not all(whole):
        raise ConfigInvalid(f"rope_parameters: {name} is {found!r:.80}; expected {count} numbers above 0")
    return [Decimal(float(np.float32(d))) for d in numbers]


def _attention_factor(parameters: Parameters, factor: Decimal) -> Decimal:
    if parameters.get("attention_factor") is not None:
        return _number(parameters, "attention_factor")

    def grown(weight: Decimal) -> Decimal:
        return weight * factor.ln() / 10 + 1 if factor > 1 else _ONE

    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        return grown(_number(parameters, "mscale")) / grown(_number(parameters, "mscale_all_dim"))
    return grown(_ONE)


KINDS: Mapping[str, Callable[[Parameters, Frequencies, Decimal, int], Scaled]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
    "dynamic": _default,
}
"""Scalings by `rope_type`. `dynamic` is `default` up to the trained length; `longrope` is its short form."""


def _number(parameters: Parameters, name: str, default: Decimal | int | None = None, *, above: int = 0) -> Decimal:
    """A parameter's exact binary64 value, or `default` if it is missing, null or, as in transformers, 0."""
    found = parameters.get(name)
    value = found or default
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or not above < value < math.inf:
        raise ConfigInvalid(f"rope_parameters: {name} is {found!r}; expected a number above {above}")
    return Decimal(value)


def _float32(value: Decimal) -> float:
    return float(np.float32(float(value)))  # to binary64 first, as docs/numerics.md defines it


def query_scales(scale: float, temperature: Temperature | None, positions: int) -> Float32:
    """Query scales by position, [positions]: `scale`, or with a temperature `scale` * (1 + temperature.scale * ln(1 +
    (p + ahead) div floor)), rounded to binary64 and then to float32.
    """
    if temperature is None:
        return np.full(positions, scale, np.float32)
    with localcontext(_EXACT):
        strength, whole = Decimal(temperature.scale), Decimal(scale)
        steps = [float(whole * (1 + strength * Decimal(1 + n).ln())) for n in range(positions // temperature.floor + 1)]
    each = np.array(steps, np.float64).astype(np.float32)
    return each[(np.arange(positions) + temperature.ahead) // temperature.floor]


def rotations(frequencies: Sequence[float], scaling: float, positions: int) -> tuple[Float32, Float32]:
    """cos and sin of position * frequency, each times `scaling`: [positions, len(frequencies)].

    The product is float32's; its cosine and sine are computed in float64 and rounded once.
    """
    angles = np.arange(positions, dtype=np.float32)[:, None] * np.array(frequencies, np.float32)[None]
    sine, cosine = _sine_and_cosine(angles.astype(np.float64))
    factor = np.float32(scaling)
    return cosine.astype(np.float32) * factor, sine.astype(np.float32) * factor


def _sine_and_cosine(x: Float64) -> tuple[Float64, Float64]:
    """Sine and cosine of x from 0 to 2^20 * pi / 2, by reduction to a quarter turn and two polynomials (fdlibm's)."""
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
    """The polynomial's value by Horner's rule, from the last coefficient; each product and sum is rounded."""
    total = np.full_like(z, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * z + coefficient
    return total


def inverse_root(x: float) -> float:
    """x^(-1/2) as binary64, rounded once: the rounding of C's `pow` differs between libms."""
    return float(_EXACT.divide(Decimal(1), _EXACT.sqrt(Decimal(x))))

"""`docs/numerics.md`, Cache and Attention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.generation.target.reference.operations import ZERO, add, capped, exp, fma, fold, larger

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

_TURN = float.fromhex("0x1.45f306dc9c883p-1")
_QUARTER = [float.fromhex(x) for x in ("0x1.921fb544p+0", "0x1.0b4611a6p-34", "0x1.3198a2e037073p-69")]
_S = [
    float.fromhex(x)
    for x in (
        "-0x1.5555555555549p-3", "0x1.111111110f8a6p-7", "-0x1.a01a019c161d5p-13", "0x1.71de357b1fe7dp-19",
        "-0x1.ae5e68a2b9cebp-26", "0x1.5d93a5acfd57cp-33",
    )
]  # fmt: skip
_C = [
    float.fromhex(x)
    for x in (
        "0x1.555555555554cp-5", "-0x1.6c16c16c15177p-10", "0x1.a01a019cb1590p-16", "-0x1.27e4f809c52adp-22",
        "0x1.1ee9ebdb4b1c4p-29", "-0x1.8fae9be8838d4p-37",
    )
]  # fmt: skip


def cosines_and_sines(
    positions: NDArray[np.int64], frequencies: Sequence[float], factor: float
) -> tuple[Float32, Float32]:
    """Of each position and each inverse frequency: two tables [positions, dim / 2]."""
    angles = positions.astype(np.float32)[:, None] * np.array(frequencies, np.float32)
    sine, cosine = _sine_and_cosine(angles.astype(np.float64))
    return cosine.astype(np.float32) * np.float32(factor), sine.astype(np.float32) * np.float32(factor)


def _sine_and_cosine(a: Float64) -> tuple[Float64, Float64]:
    t = np.rint(a * _TURN)
    r = ((a - t * _QUARTER[0]) - t * _QUARTER[1]) - t * _QUARTER[2]
    z = r * r
    sine = r + (r * z) * _horner(_S, z)
    cosine = (1.0 - 0.5 * z) + (z * z) * _horner(_C, z)
    quarter = (t % 4).astype(np.int64)
    # sin(r + 0, 1, 2, 3 quarters) is sin r, cos r, -sin r, -cos r; the cosine is one quarter ahead.
    return (
        np.choose(quarter, [sine, cosine, -sine, -cosine]),
        np.choose(quarter, [cosine, -sine, -cosine, sine]),
    )


def _horner(coefficients: Sequence[float], z: Float64) -> Float64:
    value = np.full_like(z, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * z + coefficient
    return value


@np.errstate(all="ignore")
def rotate(v: Float32, cosine: Float32, sine: Float32, neighbours: bool = False) -> Float32:
    """Heads v [..., dim]; cosine and sine [..., h] of their position, h at most dim / 2."""
    h = cosine.shape[-1]
    if neighbours:
        halves = rotate(np.concatenate([v[..., 0 : 2 * h : 2], v[..., 1 : 2 * h : 2]], axis=-1), cosine, sine)
        pairs = np.stack([halves[..., :h], halves[..., h:]], axis=-1).reshape(*v.shape[:-1], 2 * h)
        return np.concatenate([pairs, v[..., 2 * h :]], axis=-1)
    first, second = v[..., :h], v[..., h : 2 * h]
    low = first * cosine - second * sine
    high = second * cosine + first * sine
    return np.concatenate([low, high, v[..., 2 * h :]], axis=-1)


BLOCK = 64  # positions


def cached(values: Float32, dtype: str) -> Float32:
    """`values` as they are read from a cache of `dtype`, float32 or bfloat16."""
    if dtype == "float32":
        return values
    bits = values.view(np.uint32)
    to_even = (bits >> 16 & 1) + np.uint32(0x7FFF)  # carries into the upper half exactly where rounding goes up
    rounded = (bits + to_even >> 16 << 16).view(np.float32)
    return np.where(np.isnan(values), values, rounded)


@np.errstate(all="ignore")
def attention(
    queries: Float32, keys: Float32, values: Float32, window: int, cap: np.float32 = ZERO,
    sinks: Float32 | None = None, chunk: int = 0,
) -> Float32:  # fmt: skip
    """The row at the last position of its own history, which holds it: [heads, dim].

    Args:
        queries: [heads, dim], rotated and scaled.
        keys, values: [positions, key heads, dim], keys rotated.
        window: positions that the row sees, itself included; 0 is all of them.
        cap: what scores are bent below; 0 leaves them as they are.
        sinks: [heads] or none.
        chunk: positions of which the row sees those of its own chunk; 0 is no chunk.
    """
    heads, positions = len(queries), len(keys)
    first = max(0, positions - window) if window else 0
    first = max(first, (positions - 1) // chunk * chunk) if chunk else first
    key_head = np.arange(heads) // (heads // keys.shape[1])
    blocks = []
    for block in range(first // BLOCK, (positions - 1) // BLOCK + 1):
        low, high = max(first, block * BLOCK), min(positions, (block + 1) * BLOCK)
        visible = np.arange(low, high) - block * BLOCK
        blocks.append(_block(queries, keys[low:high, key_head], values[low:high, key_head], visible, cap))
    if sinks is not None:
        blocks.append((sinks, np.ones_like(sinks), np.zeros_like(queries)))
    top, total, mixed = blocks[0]
    for m, weight, o in blocks[1:]:
        before, top = top, larger(top, m)
        a, c = exp(before - top), exp(m - top)
        total = fma(weight, c, total * a)
        mixed = fma(o, c[:, None], mixed * a[:, None])
    return mixed / total[:, None]


def _block(
    queries: Float32, keys: Float32, values: Float32, visible: NDArray[np.int64], cap: np.float32
) -> tuple[Float32, Float32, Float32]:
    """(m, l, o): [heads], [heads], [heads, dim] of the keys and values [visible, heads, dim] of one block."""
    heads, dim = queries.shape
    score = np.zeros((heads, len(visible)), np.float32)
    for i in range(dim):
        score = fma(queries[:, i, None], keys[:, :, i].T, score)
    score = capped(score, cap) if cap else score
    scores = np.full((heads, BLOCK), -np.inf, np.float32)
    scores[:, visible] = score
    m = fold(scores, larger)
    e = np.zeros((heads, BLOCK), np.float32)
    e[:, visible] = exp(score - m[:, None])
    o = np.zeros((heads, dim), np.float32)
    for j, place in enumerate(visible):
        o = fma(e[:, place, None], values[j], o)
    return m, fold(e, add), o

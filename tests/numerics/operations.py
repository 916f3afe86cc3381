"""The operations of a layer in plain numpy: linear layers, also with int8, norms, rotations, attention, experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.generation.target.arrays import Bytes, Float32, Float64, Int64
from services.generation.target.files.stored_tensor import StoredTensor

Operand = Float32 | np.float32

ZERO, ONE = np.float32(0), np.float32(1)
BLOCK = 128  # terms of a partial sum of a linear layer
_TILE = 1024  # outputs of a linear layer that are computed together: their terms are in a CPU's cache
_PARTIAL_SUMS = 16  # of a norm
_NORMAL = 2.0**-126  # the least normal number of float32
_BEYOND, _MIDWAY = (1 << 29) - 1, 1 << 28  # the last bits of a float64, which float32 lacks, and those of a tie

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

    The product is exact in float64. Its sum with c is rounded there to odd (if it is inexact, to the neighbour whose
    last bit is set), after which rounding to float32 gives what rounding the exact sum would: Boldo and
    Melquiond, "Emulation of a FMA and correctly rounded sums", 2008. The common rounding to nearest rounds some sums
    twice: those that float64 puts midway between two neighbours in float32, and no others.
    """
    product, term = np.multiply(a, b, dtype=np.float64), np.asarray(c, np.float64)
    total = np.asarray(product + term)
    midway = total.view(np.int64) & _BEYOND == _MIDWAY
    small = np.abs(total) < _NORMAL  # where neighbours are as far apart as at _NORMAL
    if not midway.any() and not (small.any() and total[small].any()):
        return total.astype(np.float32)
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
def sigmoid(x: Float32) -> Float32:
    return ONE / (ONE + exp(-x))


@np.errstate(all="ignore")
def softplus(x: Float32) -> Float32:
    u = exp(-np.abs(x))
    s = u / (np.float32(2) + u)
    z, p = s * s, np.full_like(s, np.float32(2 / 15))
    for odd in (13, 11, 9, 7, 5, 3):
        p = fma(p, z, np.float32(2 / odd))
    return np.where(x > 0, x, ZERO) + fma(p * z, s, s + s)


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


def embedding(weight: Float32, tokens: Int64, factor: np.float32 = ONE) -> Float32:
    """Rows of weight [vocabulary, n]: [tokens, n]."""
    return weight[tokens] * factor + ZERO


@np.errstate(all="ignore")
def rms_norm(v: Float32, weight: Float32, epsilon: np.float32) -> Float32:
    """Over the last axis of v [..., n]; weight [n]."""
    inverse = ONE / np.sqrt(sum_of_squares(v) / np.float32(v.shape[-1]) + epsilon)
    scaled: Float32 = (v * inverse[..., None]) * weight
    return scaled


@np.errstate(all="ignore")
def sum_of_squares(v: Float32) -> Float32:
    """Over the last axis."""
    n = v.shape[-1]
    sums = np.zeros((*v.shape[:-1], _PARTIAL_SUMS), np.float32)
    for first in range(0, n, _PARTIAL_SUMS):
        some = v[..., first : first + _PARTIAL_SUMS]
        lanes = some.shape[-1]
        sums[..., :lanes] = fma(some, some, sums[..., :lanes])
    return fold(sums, add)


def linear(x: Float32, weight: Float32, bias: Operand = ZERO) -> Float32:
    """x [..., K], weight [N, K], bias [N]: [..., N]."""
    tiles = [_linear(x, weight[first : first + _TILE]) for first in range(0, len(weight), _TILE)]
    return add(np.concatenate(tiles, axis=-1), bias)


def _linear(x: Float32, weight: Float32) -> Float32:
    outputs, inputs = weight.shape
    columns = np.ascontiguousarray(weight.T)
    parts = np.zeros((*x.shape[:-1], -(-inputs // BLOCK), outputs), np.float32)
    for k in range(min(BLOCK, inputs)):  # of all blocks together; the last one may be shorter
        factors = x[..., k::BLOCK, None]
        some = parts[..., : factors.shape[-2], :]
        some[:] = fma(factors, columns[k::BLOCK], some)
    total = np.zeros((*x.shape[:-1], outputs), np.float32)
    for block in range(parts.shape[-2]):
        total = add(total, parts[..., block, :])
    return total


def low_rank(y: Float32, x: Float32, down: Float32, up: Float32, scale: np.float32) -> Float32:
    """y [..., N] of a module that read x [..., K], with the update (A = down [r, K], B = up [N, r], s = scale)."""
    inner = linear(x, down)
    return fma(scale, linear(inner, up), y)


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


def cosines_and_sines(positions: Int64, frequencies: Sequence[float], factor: float) -> tuple[Float32, Float32]:
    """Cosines and sines of each position and inverse frequency: two tables [positions, dim / 2]."""
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
    return (np.choose(quarter, [sine, cosine, -sine, -cosine]), np.choose(quarter, [cosine, -sine, -cosine, sine]))


def _horner(coefficients: Sequence[float], z: Float64) -> Float64:
    value = np.full_like(z, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * z + coefficient
    return value


@np.errstate(all="ignore")
def rotate(v: Float32, cosine: Float32, sine: Float32, interleaved: bool = False) -> Float32:
    """Heads v [..., dim]; cosine and sine [..., h] of their position, h at most dim / 2."""
    h = cosine.shape[-1]
    if interleaved:
        halves = rotate(np.concatenate([v[..., 0 : 2 * h : 2], v[..., 1 : 2 * h : 2]], axis=-1), cosine, sine)
        pairs = np.stack([halves[..., :h], halves[..., h:]], axis=-1).reshape(*v.shape[:-1], 2 * h)
        return np.concatenate([pairs, v[..., 2 * h :]], axis=-1)
    first, second = v[..., :h], v[..., h : 2 * h]
    low = first * cosine - second * sine
    high = second * cosine + first * sine
    return np.concatenate([low, high, v[..., 2 * h :]], axis=-1)


_POSITIONS = 64  # positions


def cached(values: Float32, dtype: str) -> Float32:
    """`values` as they are read from a cache of `dtype`, float32 or bfloat16. In int8 it is used for the inputs of
    convolutions and states; keys and values are rounded when they are multiplied.
    """
    if dtype == "float32":
        return values
    bits = values.view(np.uint32)
    to_even = (bits >> 16 & 1) + np.uint32(0x7FFF)  # carries into the upper half exactly where rounding goes up
    rounded = (bits + to_even >> 16 << 16).view(np.float32)
    return np.where(np.isnan(values), values, rounded)


@np.errstate(all="ignore")
def attention(
    queries: Float32, keys: Float32, values: Float32, window: int, cap: np.float32 = ZERO,
    sinks: Float32 | None = None, chunk: int = 0, dtype: str = "float32",
) -> Float32:  # fmt: skip
    """The row at the last position of its own history, which holds it: [heads, dim].

    Args:
        queries: [heads, dim], rotated and scaled.
        keys, values: [positions, key heads, dim], keys rotated.
        window: positions that the row sees, itself included; 0 is all of them.
        cap: soft cap of scores, or 0.
        sinks: [heads] or none.
        chunk: positions of an attention chunk, or 0.
        dtype: of the cache; keys and values are as it holds them, but for int8.
    """
    heads, positions = len(queries), len(keys)
    first = max(0, positions - window) if window else 0
    first = max(first, (positions - 1) // chunk * chunk) if chunk else first
    key_head = np.arange(heads) // (heads // keys.shape[1])
    blocks = []
    for block in range(first // _POSITIONS, (positions - 1) // _POSITIONS + 1):
        low, high = max(first, block * _POSITIONS), min(positions, (block + 1) * _POSITIONS)
        visible = np.arange(low, high) - block * _POSITIONS
        some = (queries, keys[low:high, key_head], values[low:high, key_head], visible)
        blocks.append(_block(*some, cap, _scores_int8, _mix_int8) if dtype == "int8" else _block(*some, cap))
    if sinks is not None:
        blocks.append((sinks, np.ones_like(sinks), np.zeros_like(queries)))
    top, total, mixed = blocks[0]
    for m, weight, o in blocks[1:]:
        before, top = top, larger(top, m)
        a, c = exp(before - top), exp(m - top)
        total = fma(weight, c, total * a)
        mixed = fma(o, c[:, None], mixed * a[:, None])
    return mixed / total[:, None]


def _scores(queries: Float32, keys: Float32) -> Float32:
    score = np.zeros((len(queries), len(keys)), np.float32)
    for i in range(queries.shape[1]):
        score = fma(queries[:, i, None], keys[:, :, i].T, score)
    return score


def _mix(weights: Float32, values: Float32, visible: Int64) -> Float32:
    o = np.zeros(values.shape[1:], np.float32)
    for j, place in enumerate(visible):
        o = fma(weights[:, place, None], values[j], o)
    return o


def _scores_int8(queries: Float32, keys: Float32) -> Float32:
    (q, d), (k, e) = rounded(queries, queries.shape[1]), rounded(keys, keys.shape[2])
    return np.asarray((d * e[:, :, 0].T) * np.einsum("hi,jhi->hj", q, k).astype(np.float32), np.float32)


def _mix_int8(weights: Float32, values: Float32, visible: Int64) -> Float32:
    v, d = rounded(values, values.shape[2])
    scaled = np.zeros((len(weights), _POSITIONS), np.float32)
    scaled[:, visible] = weights[:, visible] * d[:, :, 0].T
    w, e = rounded(scaled, _POSITIONS)
    return np.asarray(e * np.einsum("hj,jhi->hi", w[:, visible], v).astype(np.float32), np.float32)


def _block(
    queries: Float32, keys: Float32, values: Float32, visible: Int64, cap: np.float32,
    scores_of: Callable[[Float32, Float32], Float32] = _scores,
    mix: Callable[[Float32, Float32, Int64], Float32] = _mix,
) -> tuple[Float32, Float32, Float32]:  # fmt: skip
    """(m, l, o): [heads], [heads], [heads, dim] of the keys and values [visible, heads, dim] of one block."""
    heads = len(queries)
    score = scores_of(queries, keys)
    score = capped(score, cap) if cap else score
    scores = np.full((heads, _POSITIONS), -np.inf, np.float32)
    scores[:, visible] = score
    m = fold(scores, larger)
    e = np.zeros((heads, _POSITIONS), np.float32)
    e[:, visible] = exp(score - m[:, None])
    return m, fold(e, add), mix(e, values, visible)


@np.errstate(all="ignore")
def short_convolution(inputs: Float32, weights: Float32, bias: Operand = ZERO) -> Float32:
    """Sums over taps of inputs [tokens, channels], from the first token on. Weights are [channels, taps]."""
    taps = weights.shape[1]
    total = np.broadcast_to(bias, inputs.shape).copy()
    for tap in range(taps):
        back = taps - 1 - tap
        total[back:] = fma(weights[:, tap], inputs[: len(inputs) - back], total[back:])
    return total


@np.errstate(all="ignore")
def unit(heads: Float32, factor: np.float32) -> Float32:
    """Heads [..., n] of length 1, times a factor."""
    inverse = ONE / np.sqrt(sum_of_squares(heads) + np.float32(1e-6))
    return np.asarray((heads * inverse[..., None]) * factor, np.float32)


@np.errstate(all="ignore")
def folded(
    queries: Float32, keys: Float32, values: Float32, decays: Float32, strengths: Float32,
    skips: Float32 | None = None, *, tiled: bool = False,
) -> Float32:  # fmt: skip
    """Outputs of states for each token, from the first on: [tokens, value heads, value size]. They are folded by the
    gated delta rule, or, with skips [value heads], by Mamba-2.

    Queries and keys are [tokens, key heads, key size], values [tokens, value heads, value size], the others [tokens,
    value heads]. Value heads of a key head are adjacent, or, if `tiled`, `key heads` apart.
    """
    tokens, heads, size = values.shape
    key_heads, rows = keys.shape[1:]
    served = np.arange(heads) % key_heads if tiled else np.arange(heads) // (heads // key_heads)
    state, found = np.zeros((heads, rows, size), np.float32), np.zeros_like(values)
    for token in range(tokens):
        query, key = (each[token][served][..., None] for each in (queries, keys))
        decay, strength = decays[token][:, None], strengths[token][:, None]
        value = values[token]
        change = (value - decay * _over_rows(state, key) if skips is None else value) * strength
        state = fma(key, change[:, None], decay[:, None] * state)
        found[token] = _over_rows(state, query)
        if skips is not None:
            found[token] = fma(skips[:, None], value, found[token])
    return found


_STATE_SUMS = 4  # partial sums over a state's rows


def _over_rows(state: Float32, factors: Float32) -> Float32:
    """Sums over rows of state [heads, rows, columns] times factors [heads, rows, 1]."""
    heads, rows, columns = state.shape
    sums = np.zeros((heads, columns, _STATE_SUMS), np.float32)
    for i in range(rows):
        sums[..., i % _STATE_SUMS] = fma(state[:, i], factors[:, i], sums[..., i % _STATE_SUMS])
    return fold(sums, add)


GROUP = 32  # inputs that are rounded with one scale
_SMALLEST = np.float32(2.0**-64)
_IQ4_NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int64)


@dataclass(frozen=True, slots=True)
class Quantised:
    """A matrix [N, K]: weight = scale * integer + least, with integers [N, K]; scales, and least if there is one,
    are [N, K / n] for parts of n inputs.
    """

    integers: Int64
    scales: Float32
    least: Float32 | None


def quantised(tensor: StoredTensor) -> Quantised | None:
    """The content of a tensor's blocks, or None for plain numbers."""
    rows = len(tensor.data)

    def blocks(size: int) -> Bytes:
        return tensor.data.reshape(rows, -1, size)

    def whole(values: NDArray[np.generic]) -> Int64:
        return values.reshape(rows, -1).astype(np.int64)

    def halves(packed: Bytes) -> Float32:
        return np.ascontiguousarray(packed).view("<f2").astype(np.float32)

    if tensor.storage == "q8_0":
        b = blocks(34)
        return Quantised(whole(b[..., 2:].view(np.int8)), halves(b[..., :2])[..., 0], None)
    if tensor.storage in ("q4_0", "q4_1"):
        b = blocks(18 if tensor.storage == "q4_0" else 20)
        values = whole(np.concatenate([b[..., -16:] & 15, b[..., -16:] >> 4], axis=-1))
        scales = halves(b[..., :-16])
        if tensor.storage == "q4_0":
            return Quantised(values - 8, scales[..., 0], None)
        return Quantised(values, scales[..., 0], scales[..., 1])
    if tensor.storage in ("q5_0", "q5_1"):
        b = blocks(22 if tensor.storage == "q5_0" else 24)
        low = np.concatenate([b[..., -16:] & 15, b[..., -16:] >> 4], axis=-1)
        bits = b[..., -20:-16, None] >> np.arange(8, dtype=np.uint8) & 1
        values = whole(low + 16 * bits.reshape(low.shape))
        scales = halves(b[..., :-20])
        if tensor.storage == "q5_0":
            return Quantised(values - 16, scales[..., 0], None)
        return Quantised(values, scales[..., 0], scales[..., 1])
    if tensor.storage == "iq4_nl":
        b = blocks(18)
        places = whole(np.concatenate([b[..., -16:] & 15, b[..., -16:] >> 4], axis=-1))
        return Quantised(_IQ4_NL[places], halves(b[..., :2])[..., 0], None)
    if tensor.storage in ("q4_k", "q5_k"):
        b = blocks(144 if tensor.storage == "q4_k" else 176)
        values = np.stack([b[..., -128:].reshape(rows, -1, 4, 32) >> shift & 15 for shift in (0, 4)], axis=-2)
        values = values.reshape(rows, -1, 8, 32)
        if tensor.storage == "q5_k":
            upper = b[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
            values = values + 16 * upper
        first, second, third = (b[..., at : at + 4] for at in (4, 8, 12))
        scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1).astype(np.float32)
        least = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1).astype(np.float32)
        both = halves(b[..., :4])
        return Quantised(
            whole(values), (both[..., :1] * scales).reshape(rows, -1), -(both[..., 1:] * least).reshape(rows, -1)
        )
    if tensor.storage == "q6_k":
        b = blocks(210)
        low = np.stack([b[..., :128].reshape(rows, -1, 2, 64) >> shift & 15 for shift in (0, 4)], axis=-2)
        low = low.reshape(rows, -1, 2, 4, 32)
        high = np.stack([b[..., 128:192].reshape(rows, -1, 2, 32) >> shift & 3 for shift in (0, 2, 4, 6)], axis=-2)
        scales = b[..., 192:208].view(np.int8).astype(np.float32) * halves(b[..., 208:])
        return Quantised(whole(low + 16 * high) - 32, scales.reshape(rows, -1), None)
    return None


@np.errstate(all="ignore")
def rounded(x: Float32, size: int = GROUP) -> tuple[Int64, Float32]:
    """x [..., K] as integers from -127 to 127, and the scale of each group, [..., K / size]."""
    groups = x.reshape(*x.shape[:-1], x.shape[-1] // size, size)
    finite = np.asarray(np.isfinite(groups).all(axis=-1))
    largest = np.where(finite, np.max(np.abs(groups), axis=-1), ZERO)
    used = largest >= _SMALLEST
    scale = np.where(finite, np.where(used, largest / np.float32(127), ZERO), np.float32(np.nan))
    inverse = np.where(used, np.float32(127) / np.where(used, largest, ONE), ZERO)
    integers = fma(np.where(finite[..., None], groups, ZERO), inverse[..., None], _ROUND) - _ROUND
    return integers.reshape(x.shape).astype(np.int64), scale


@np.errstate(all="ignore")
def linear_int8(x: Float32, weight: Quantised, bias: Operand = ZERO) -> Float32:
    """x [..., K], weight [N, K], bias [N]: [..., N]."""
    integers, d = rounded(x)
    size = x.shape[-1] // weight.scales.shape[1]  # inputs that share a scale
    total = np.zeros((*x.shape[:-1], len(weight.integers)), np.float32)
    for part in range(weight.scales.shape[1]):
        inputs = slice(part * size, (part + 1) * size)
        own = d[..., part * size // GROUP, None]
        products = integers[..., None, inputs] * weight.integers[:, inputs]
        total = fma(weight.scales[:, part] * own, products.sum(axis=-1).astype(np.float32), total)
        if weight.least is not None:
            whole = integers[..., inputs].sum(axis=-1).astype(np.float32)[..., None]
            total = fma(weight.least[:, part], own * whole, total)
    return add(total, bias)

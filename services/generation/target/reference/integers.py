"""`docs/numerics.md`, Linear with int8."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.generation.target.files.stored_tensor import StoredTensor
from services.generation.target.reference.operations import ONE, ZERO, Operand, add, fma

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
Bytes = NDArray[np.uint8]

GROUP = 32  # inputs that are rounded with one scale
_ROUND = np.float32(12582912)
_SMALLEST = np.float32(2.0**-64)
_IQ4_NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int64)


@dataclass(frozen=True, slots=True)
class Quantised:
    """A matrix [N, K]: weight = scale * integer + least, with integers [N, K]; scales and, where there is one, least
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
def rounded(x: Float32) -> tuple[Int64, Float32]:
    """x [..., K] as integers from -127 to 127, and what those of each group are scaled by, [..., K / 32]."""
    groups = x.reshape(*x.shape[:-1], -1, GROUP)
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

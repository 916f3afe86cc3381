"""The canonical kernels of the CPU target: all of a pass but the linear layers and attention (`attention`).

A kernel computes each row by one fixed program over that row's own inputs: every sum has one order, whatever stands
beside the row. LLVM may vectorise these loops but, without fast-math, it may neither reorder nor fuse an operation
(`fma` is fused because it says so), so the bits of a row follow from IEEE 754 alone. Sums over many terms run in
`LANES` interleaved partial sums, which is what lets them use vector registers without leaving the program's order to
the compiler.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import cfunc, njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from services.generation.target.kernel_cache import kernel_cache

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]
Function = TypeVar("Function", bound=Callable[..., Any])

BLOCK = 64  # tokens in a block of the key/value cache
LANES = 16  # partial sums of a reduction; float32 values in the widest vector register of x86-64

_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)  # ln 2 split in two, so that x - n ln 2 keeps its low bits (Cody and Waite)
_LN2_LOW = np.float32(-2.12194440e-4)
_ROUND = np.float32(12582912.0)  # 1.5 * 2**23: adding and subtracting it rounds to the nearest integer
_LOWEST = np.float32(-87.0)  # exp below this is subnormal; it is clamped, far under anything a softmax can see
_HIGHEST = np.float32(88.0)


def kernel(function: Function) -> Function:
    """Compile for this machine, without the GIL, with the result kept on disk (`kernel_cache`)."""
    with kernel_cache():
        return cast(Function, njit(nogil=True, cache=True, fastmath=False, error_model="numpy")(function))


def inlined(function: Function) -> Function:
    """A part of kernels, compiled into each place that calls it: a call of its own would pass every array's shape."""
    compiled = njit(nogil=True, fastmath=False, error_model="numpy", forceinline=True)(function)
    return cast(Function, compiled)


def callback(signature: Any, below: str = "") -> Callable[[Function], Any]:
    """Compile as a kernel that C code can call; the result has its `address`. `below`: see `kernel_cache`."""

    def compiled(function: Function) -> Any:
        with kernel_cache(below):
            return cfunc(signature, cache=True, error_model="numpy")(function)

    return compiled


def _fma(context: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c with one rounding, by the machine's own instruction (IEEE 754 fusedMultiplyAdd); all float32."""
    return types.float32(types.float32, types.float32, types.float32), _build_fma


def _build_fma(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return builder.fma(*arguments)


def _float_of(context: Any, bits: Any) -> Any:
    """The float32 that has the bits of an int32."""
    return types.float32(types.int32), _build_float_of


def _build_float_of(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return builder.bitcast(arguments[0], context.get_value_type(types.float32))


fma: Any = intrinsic(_fma)
_as_float: Any = intrinsic(_float_of)


@kernel
def exp(value: np.float32) -> np.float32:
    """e to the power of `value`, by the polynomial of Cephes' expf with fused multiply-adds.

    A library's exp may use other code for the last few elements of an array than for the rest; this one cannot.
    """
    x = min(max(value, _LOWEST), _HIGHEST)
    n = fma(x, _LOG2_E, _ROUND) - _ROUND
    r = fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))
    p = np.float32(1.9875691500e-4)
    p = fma(p, r, np.float32(1.3981999507e-3))
    p = fma(p, r, np.float32(8.3334519073e-3))
    p = fma(p, r, np.float32(4.1665795894e-2))
    p = fma(p, r, np.float32(1.6666665459e-1))
    p = fma(p, r, np.float32(5.0000001201e-1))
    power = _as_float(np.int32((np.int32(n) + np.int32(127)) << np.int32(23)))
    return np.float32((fma(p * r, r, r) + np.float32(1.0)) * power)


@kernel
def lane_sum(lanes: Float32) -> np.float32:
    total = np.float32(0.0)
    for lane in range(LANES):
        total += lanes[lane]
    return total


@inlined
def _inverse_rms(row: Float32, epsilon: np.float32, lanes: Float32) -> np.float32:
    size = row.shape[0]
    whole = size - size % LANES
    lanes[:] = np.float32(0.0)
    for start in range(0, whole, LANES):
        for lane in range(LANES):
            lanes[lane] += row[start + lane] * row[start + lane]
    for i in range(whole, size):
        lanes[i - whole] += row[i] * row[i]
    mean = lane_sum(lanes) / np.float32(size)
    return np.float32(1.0) / np.float32(math.sqrt(mean + epsilon))


@kernel
def rms_norm(hidden: Float32, weight: Float32, epsilon: np.float32, out: Float32) -> None:
    """`out[r] = hidden[r] / rms(hidden[r]) * weight`; hidden, out [rows, size], weight [size] (Zhang & Sennrich
    2019).
    """
    lanes = np.empty(LANES, np.float32)
    for r in range(hidden.shape[0]):
        inverse = _inverse_rms(hidden[r], epsilon, lanes)
        for i in range(hidden.shape[1]):
            out[r, i] = (hidden[r, i] * inverse) * weight[i]


@kernel
def add_rms_norm(hidden: Float32, update: Float32, weight: Float32, epsilon: np.float32, out: Float32) -> None:
    """`hidden += update`, the residual stream, then `rms_norm` of it into `out`; all [rows, size]."""
    for r in range(hidden.shape[0]):
        for i in range(hidden.shape[1]):
            hidden[r, i] += update[r, i]
    rms_norm(hidden, weight, epsilon, out)


@kernel
def silu_multiply(gate_up: Float32, out: Float32) -> None:
    """`out = silu(gate) * up` where gate_up [rows, 2 * size] holds gate, then up, in each row (SwiGLU, Shazeer
    2020).
    """
    size = out.shape[1]
    for r in range(out.shape[0]):
        for i in range(size):
            gate = gate_up[r, i]
            out[r, i] = (gate / (np.float32(1.0) + exp(-gate))) * gate_up[r, size + i]


@inlined
def _normalise(head: Float32, weight: Float32, epsilon: np.float32, lanes: Float32) -> None:
    inverse = _inverse_rms(head, epsilon, lanes)
    for i in range(head.shape[0]):
        head[i] = (head[i] * inverse) * weight[i]


@inlined
def _rotate(head: Float32, cos: Float32, sin: Float32) -> None:
    half = head.shape[0] // 2
    for i in range(half):
        low, high = head[i], head[i + half]
        head[i] = low * cos[i] - high * sin[i]
        head[i + half] = high * cos[i] + low * sin[i]


@kernel
def rotate_and_store(
    qkv: Float32,
    heads: int,
    positions: Int32,
    slots: Int32,
    cos: Float32,
    sin: Float32,
    head_norms: Float32,
    epsilon: np.float32,
    keys: Float32,
    values: Float32,
) -> None:
    """Rotate queries and keys by position, in place (RoPE, Su et al. 2021), and store keys and values in the cache.

    qkv [rows, heads + 2 kv_heads, dim]; cos, sin [context, dim / 2]; head_norms [2, dim] are the query and key norms of
    Qwen3, or [0, dim] without them; keys [blocks, kv_heads, dim, BLOCK]; values [blocks, kv_heads, BLOCK, dim].
    """
    kv_heads, dim = values.shape[1], values.shape[3]
    lanes = np.empty(LANES, np.float32)
    for r in range(qkv.shape[0]):
        position, block, offset = positions[r], slots[r] // BLOCK, slots[r] % BLOCK
        for h in range(heads + kv_heads):
            if head_norms.shape[0]:
                _normalise(qkv[r, h], head_norms[0 if h < heads else 1], epsilon, lanes)
            _rotate(qkv[r, h], cos[position], sin[position])
        for h in range(kv_heads):
            for i in range(dim):
                keys[block, h, i, offset] = qkv[r, heads + h, i]
            for i in range(dim):
                values[block, h, offset, i] = qkv[r, heads + kv_heads + h, i]


@kernel
def move_slots(keys: Float32, values: Float32, sources: Int32, targets: Int32) -> None:
    """Copy cache slots in every layer; keys [layers, blocks, kv_heads, dim, BLOCK]. Targets never precede a later
    source.
    """
    for layer in range(keys.shape[0]):
        for n in range(sources.shape[0]):
            a, i, b, j = sources[n] // BLOCK, sources[n] % BLOCK, targets[n] // BLOCK, targets[n] % BLOCK
            keys[layer, b, :, :, j] = keys[layer, a, :, :, i]
            values[layer, b, :, j, :] = values[layer, a, :, i, :]

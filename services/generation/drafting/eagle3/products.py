"""Matrix products of a small head: a few rows through weights that lie in panels of columns, by all of torch's threads.

Such a product takes as long as its weights take to arrive: from memory for the first step after a pass of the target,
from a core's caches for the next. Weights that bfloat16 holds without loss, as most heads are stored, therefore stay in
two bytes and are widened on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic
from numpy.typing import NDArray

from services.generation.drafting.eagle3.quick import quick
from services.generation.target.kernels import Float32, callback
from services.generation.target.team import member, members, run_on_team

PANEL = 128  # columns of a panel: a row of sums in eight vector registers of 16
MULTIPLE = 8  # of the input dimension: so many of its terms are added in one go
_TEAM = 1 << 15  # weights of a product that is worth waking the team for

Panels = NDArray[np.float32] | NDArray[np.uint16]


def panels_of(*weights: torch.Tensor) -> Float32:
    """Weights [out, in], one under the other, as [panels, in, PANEL], the last panel filled up with zeros."""
    rows = torch.cat(weights).contiguous().numpy()
    count = -(-rows.shape[0] // PANEL)
    whole = np.zeros((count * PANEL, rows.shape[1]), np.float32)
    whole[: rows.shape[0]] = rows
    return np.ascontiguousarray(whole.reshape(count, PANEL, -1).transpose(0, 2, 1))


def halved(weights: Sequence[Float32]) -> tuple[Panels, ...]:
    """The weights as the upper halves of their bits, uint16, if the lower halves are all zero; else as they are."""
    bits = [panels.view(np.uint32) for panels in weights]
    if any((words & 0xFFFF).any() for words in bits):
        return tuple(weights)
    return tuple((words >> 16).astype(np.uint16) for words in bits)


def _widened(context: Any, weight: Any) -> Any:
    """A weight as float32: what it is, or the float32 whose upper half is its 16 bits."""
    return types.float32(weight), _build_shifted if weight == types.uint16 else _build_same


def _build_shifted(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    word = context.get_value_type(types.uint32)
    upper = builder.shl(builder.zext(arguments[0], word), word(16))
    return builder.bitcast(upper, context.get_value_type(types.float32))


def _build_same(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return arguments[0]


_wide: Any = intrinsic(_widened)


@quick
def multiply(x: Float32, weight: Panels, out: Float32, share: int, threads: int) -> None:
    """out = x @ weight; x [rows, in], out [rows, columns], C-contiguous. `share` is the address of `product_share`.

    Runs on `threads` threads of torch's team where the weight is worth it. `in` is a multiple of MULTIPLE.
    """
    if threads < 2 or weight.size < _TEAM:
        _product(x, weight, out, 0, 1)
        return
    sizes = np.empty(6, np.int64)
    sizes[0], sizes[1], sizes[2] = x.shape[0], x.shape[1], out.shape[1]
    sizes[3], sizes[4], sizes[5] = weight.shape[0], weight.itemsize, 0
    places = np.empty(4, np.uintp)
    places[0], places[1], places[2] = sizes.ctypes.data, x.ctypes.data, weight.ctypes.data
    places[3] = out.ctypes.data
    run_on_team(share, places.ctypes.data, threads, 0)


@quick
def _product(x: Float32, weight: Panels, out: Float32, part: int, parts: int) -> None:
    """The columns of every part of `parts` panels: rows by fours, then by twos, then alone."""
    rows = x.shape[0]
    for panel in range(part, weight.shape[0], parts):
        first = panel * PANEL
        last = min(first + PANEL, out.shape[1])
        r = 0
        while r < rows:
            if rows - r >= 4:
                _four(x, weight[panel], out, r, first, last)
                r += 4
            elif rows - r >= 2:
                _two(x, weight[panel], out, r, first, last)
                r += 2
            else:
                _one(x, weight[panel], out, r, first, last)
                r += 1


@quick
def _one(x: Float32, weight: Any, out: Float32, r: int, first: int, last: int) -> None:
    a, o = x[r], out[r, first:last]
    o[:] = np.float32(0.0)
    for k in range(0, weight.shape[0], 8):
        a0, a1, a2, a3, a4, a5, a6, a7 = a[k], a[k + 1], a[k + 2], a[k + 3], a[k + 4], a[k + 5], a[k + 6], a[k + 7]
        w0, w1, w2, w3 = weight[k], weight[k + 1], weight[k + 2], weight[k + 3]
        w4, w5, w6, w7 = weight[k + 4], weight[k + 5], weight[k + 6], weight[k + 7]
        for n in range(o.shape[0]):
            low = a0 * _wide(w0[n]) + a1 * _wide(w1[n]) + a2 * _wide(w2[n]) + a3 * _wide(w3[n])
            o[n] += low + (a4 * _wide(w4[n]) + a5 * _wide(w5[n]) + a6 * _wide(w6[n]) + a7 * _wide(w7[n]))


@quick
def _two(x: Float32, weight: Any, out: Float32, r: int, first: int, last: int) -> None:
    a, b, o, p = x[r], x[r + 1], out[r, first:last], out[r + 1, first:last]
    o[:], p[:] = np.float32(0.0), np.float32(0.0)
    for k in range(0, weight.shape[0], 4):
        a0, a1, a2, a3 = a[k], a[k + 1], a[k + 2], a[k + 3]
        b0, b1, b2, b3 = b[k], b[k + 1], b[k + 2], b[k + 3]
        w0, w1, w2, w3 = weight[k], weight[k + 1], weight[k + 2], weight[k + 3]
        for n in range(o.shape[0]):
            u0, u1, u2, u3 = _wide(w0[n]), _wide(w1[n]), _wide(w2[n]), _wide(w3[n])
            o[n] += a0 * u0 + a1 * u1 + a2 * u2 + a3 * u3
            p[n] += b0 * u0 + b1 * u1 + b2 * u2 + b3 * u3


@quick
def _four(x: Float32, weight: Any, out: Float32, r: int, first: int, last: int) -> None:
    a, b, c, d = x[r], x[r + 1], x[r + 2], x[r + 3]
    o, p, q, s = out[r, first:last], out[r + 1, first:last], out[r + 2, first:last], out[r + 3, first:last]
    o[:], p[:], q[:], s[:] = np.float32(0.0), np.float32(0.0), np.float32(0.0), np.float32(0.0)
    for k in range(0, weight.shape[0], 4):
        a0, a1, a2, a3 = a[k], a[k + 1], a[k + 2], a[k + 3]
        b0, b1, b2, b3 = b[k], b[k + 1], b[k + 2], b[k + 3]
        c0, c1, c2, c3 = c[k], c[k + 1], c[k + 2], c[k + 3]
        d0, d1, d2, d3 = d[k], d[k + 1], d[k + 2], d[k + 3]
        w0, w1, w2, w3 = weight[k], weight[k + 1], weight[k + 2], weight[k + 3]
        for n in range(o.shape[0]):
            u0, u1, u2, u3 = _wide(w0[n]), _wide(w1[n]), _wide(w2[n]), _wide(w3[n])
            o[n] += a0 * u0 + a1 * u1 + a2 * u2 + a3 * u3
            p[n] += b0 * u0 + b1 * u1 + b2 * u2 + b3 * u3
            q[n] += c0 * u0 + c1 * u1 + c2 * u2 + c3 * u3
            s[n] += d0 * u0 + d1 * u1 + d2 * u2 + d3 * u3


@callback(types.void(types.CPointer(types.CPointer(types.float32))))  # type: ignore[no-untyped-call]
def product_share(places: Any) -> None:
    """One member's panels. `places` are the addresses that `multiply` wrote, all read as float32 pointers."""
    sizes = carray(places[0], 12).view(np.int64)
    rows, read, columns, panels = sizes[0], sizes[1], sizes[2], sizes[3]
    x, out = carray(places[1], (rows, read)), carray(places[3], (rows, columns))
    if sizes[4] == 2:
        halves = carray(places[2], panels * read * PANEL // 2).view(np.uint16)
        _product(x, halves.reshape((panels, read, PANEL)), out, member(), members())
    else:
        _product(x, carray(places[2], (panels, read, PANEL)), out, member(), members())

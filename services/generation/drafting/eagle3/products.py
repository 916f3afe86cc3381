"""Matrix products of a small head: rows through weights that lie in panels of columns, by all of torch's threads.

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
from numpy.typing import NDArray

from services.generation.drafting.eagle3.panels import PANEL, multiply_four, multiply_one, multiply_three, multiply_two
from services.generation.drafting.eagle3.quick import quick, quick_callback
from services.generation.target.kernels import Float32
from services.generation.target.team import member, members, run_on_team

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


@quick
def multiply(x: Float32, weight: Panels, out: Float32, share: int, threads: int) -> None:
    """out = x @ weight; x [rows, in], out [rows, columns], C-contiguous. `share` is the address of `product_share`.

    Runs on `threads` threads of torch's team where the weight is worth it.
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
    """The columns of every part of `parts` panels: rows by fours, then what is left."""
    rows, terms, columns = x.shape[0], x.shape[1], out.shape[1]
    margin = np.empty((4, PANEL), np.float32)
    for panel in range(part, weight.shape[0], parts):
        at, column = panel * terms * PANEL, panel * PANEL
        for r in range(0, rows, 4):
            count = min(rows - r, 4)
            if column + PANEL <= columns:
                _few_rows(x, r, count, weight, at, out, r * columns + column, columns)
            else:
                _few_rows(x, r, count, weight, at, margin, 0, PANEL)
                out[r : r + count, column:] = margin[:count, : columns - column]


@quick
def _few_rows(x: Float32, r: int, count: int, weight: Panels, at: int, out: Float32, to: int, stride: int) -> None:
    """Rows [r, r + count) through the panel at `at`, to the places `to` in `out`, `stride` from one row to the next."""
    terms, second, third = x.shape[1], to + stride, to + 2 * stride
    a = r * terms
    b, c = a + terms, a + 2 * terms
    if count == 1:
        multiply_one(x, (a,), weight, at, terms, out, (to,))
    elif count == 2:
        multiply_two(x, (a, b), weight, at, terms, out, (to, second))
    elif count == 3:
        multiply_three(x, (a, b, c), weight, at, terms, out, (to, second, third))
    else:
        multiply_four(x, (a, b, c, c + terms), weight, at, terms, out, (to, second, third, third + stride))


@quick_callback(types.void(types.CPointer(types.CPointer(types.float32))))  # type: ignore[no-untyped-call]
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

"""Attention by all of torch's threads: each takes a run of the rows, see `attention.attend`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]
from numpy.typing import NDArray

from services.generation.target import attention
from services.generation.target.kernels import BLOCK, Float32, Int32, callback, kernel
from services.generation.target.team import member, members, run_on_team, team_size

_SIZES = 16  # integers that a team is told before the borders of its members' shares
_ROW_WORK = 24  # keys that the rest of a row costs as much as
_attend_rows = attention.attend


def attend(
    queries: Float32,
    heads: int,
    keys: Float32,
    values: Float32,
    tables: Int32,
    sequences: Int32,
    positions: Int32,
    contiguous: Int32,
    branch_starts: Int32,
    branches: Int32,
    window: int,
    scale: np.float32,
    out: Float32,
) -> None:
    """`attention.attend` by as many threads as torch uses. Who computes a row changes nothing in it."""
    arguments = (
        queries, heads, keys, values, tables, sequences, positions, contiguous, branch_starts, branches, window, scale,
        out,
    )  # fmt: skip
    threads = team_size()
    if threads > 1 and len(queries) > 1:
        _attend_as_team(_attend_share.address, threads, *arguments)
    else:
        attention.attend(*arguments)


@kernel
def _attend_as_team(
    share: int,
    threads: int,
    queries: Float32,
    heads: int,
    keys: Float32,
    values: Float32,
    tables: Int32,
    sequences: Int32,
    positions: Int32,
    contiguous: Int32,
    branch_starts: Int32,
    branches: Int32,
    window: int,
    scale: np.float32,
    out: Float32,
) -> None:
    """Run `_attend_share`, whose address is `share`, on the team; all arrays are C-contiguous."""
    sizes = np.zeros(_SIZES + threads + 1, np.int64)
    sizes[0], sizes[1], sizes[2], sizes[3] = queries.shape[0], queries.shape[1], heads, queries.shape[2]
    sizes[4], sizes[5], sizes[6], sizes[7] = values.shape[0], values.shape[1], tables.shape[0], tables.shape[1]
    sizes[8], sizes[9], sizes[10] = branches.shape[0], window, threads
    _share_out(contiguous, sizes[_SIZES:])
    scales = np.full(1, scale, np.float32)
    places = np.empty(12, np.uintp)
    places[0], places[1], places[2] = sizes.ctypes.data, queries.ctypes.data, keys.ctypes.data
    places[3], places[4], places[5] = values.ctypes.data, tables.ctypes.data, sequences.ctypes.data
    places[6], places[7], places[8] = positions.ctypes.data, contiguous.ctypes.data, branch_starts.ctypes.data
    places[9], places[10], places[11] = branches.ctypes.data, out.ctypes.data, scales.ctypes.data
    run_on_team(share, places.ctypes.data, threads, 0)


@kernel
def _share_out(contiguous: Int32, borders: NDArray[np.int64]) -> None:
    """Share i is the rows [borders[i], borders[i + 1]): about as many keys in each."""
    total, done, threads, placed = 0, 0, borders.shape[0] - 1, 1
    for r in range(contiguous.shape[0]):
        total += contiguous[r] + _ROW_WORK
    for r in range(contiguous.shape[0]):
        done += contiguous[r] + _ROW_WORK
        while placed < threads and done * threads >= total * placed:
            borders[placed] = r + 1
            placed += 1
    borders[threads] = contiguous.shape[0]


@callback(types.void(types.CPointer(types.CPointer(types.float32))))  # type: ignore[no-untyped-call]
def _attend_share(places: Any) -> None:
    """One member's shares. `places` are the addresses that `_attend_as_team` wrote, all read as float32 pointers."""
    sizes = carray(places[0], 2 * _SIZES).view(np.int64)
    rows, width, heads, dim = sizes[0], sizes[1], sizes[2], sizes[3]
    blocks, kv_heads, shares = sizes[4], sizes[5], sizes[10]
    borders = carray(places[0], 2 * (_SIZES + shares + 1)).view(np.int64)[_SIZES:]
    for share in range(member(), shares, members()):
        first, last = borders[share], borders[share + 1]
        _attend_rows(
            carray(places[1], (rows, width, dim))[first:last],
            heads,
            carray(places[2], (blocks, kv_heads, dim, BLOCK)),
            carray(places[3], (blocks, kv_heads, BLOCK, dim)),
            carray(places[4], (sizes[6], sizes[7])).view(np.int32),
            carray(places[5], rows).view(np.int32)[first:last],
            carray(places[6], rows).view(np.int32)[first:last],
            carray(places[7], rows).view(np.int32)[first:last],
            carray(places[8], rows + 1).view(np.int32)[first : last + 1],
            carray(places[9], sizes[8]).view(np.int32),
            sizes[9],
            carray(places[11], 1)[0],
            carray(places[10], (rows, heads, dim))[first:last],
        )

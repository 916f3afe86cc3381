"""A row of logits, looked through LANES at a time: a loop over single values takes as long as the product before it."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from services.generation.drafting.eagle3.quick import quick
from services.generation.target import llvm
from services.generation.target.kernels import LANES, Float32
from services.generation.target.vectors import fold_largest

_Flags = ir.IntType(LANES)


def _above(context: Any, row: Any, at: Any, limit: Any) -> Any:
    """Bit l says whether `row[at + l] > limit`, for l < LANES."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        terms = llvm.load(builder, llvm.values(context, builder, signature, arguments, 0), arguments[1], 0)
        flags = builder.fcmp_ordered(">", terms, llvm.in_every_lane(builder, arguments[2]))
        return builder.zext(builder.bitcast(flags, _Flags), ir.IntType(64))

    llvm.require_rows(row)
    return types.uint64(row, types.intp, types.float32), build


def _lowest(context: Any, flags: Any) -> Any:
    """The number of the lowest bit that is set; there is one."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), build


_above_of: Any = intrinsic(_above)
_lowest_of: Any = intrinsic(_lowest)


@quick
def largest(row: Float32) -> np.float32:
    """The largest value that is a number; -inf where there is none above that."""
    whole = row.shape[0] - row.shape[0] % LANES
    lanes = np.full(LANES, -np.inf, np.float32)
    fold_largest(row, 0, whole // LANES, lanes)
    found = np.float32(-np.inf)
    for lane in range(LANES):
        found = lanes[lane] if lanes[lane] > found else found
    for v in range(whole, row.shape[0]):
        found = row[v] if row[v] > found else found
    return found


@quick
def above(row: Float32, limit: np.float32, places: NDArray[np.int64]) -> int:
    """Write where the row is above `limit` into `places`, ascending, and return how many these are."""
    whole, count = row.shape[0] - row.shape[0] % LANES, 0
    for at in range(0, whole, LANES):
        flags = _above_of(row, at, limit)
        while flags:
            places[count] = at + _lowest_of(flags)
            count += 1
            flags &= flags - np.uint64(1)
    for v in range(whole, row.shape[0]):
        if row[v] > limit:
            places[count] = v
            count += 1
    return count

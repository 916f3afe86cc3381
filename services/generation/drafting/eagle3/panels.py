"""The inner loop of a product: a few rows through one panel of weights, the sums in vector registers all the while.

As `target.vectors` has it for attention; weights of two bytes are widened as they are read, once for these rows.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from services.generation.target import llvm
from services.generation.target.kernels import LANES

PANEL = 128  # columns of a panel
_SUMS, _SUMS_OF_AVX2 = 16, 4
"""LLVM vectors of sums in one loop; weights and factors need registers too, of which AVX2 has 16 of half the length."""
_Halves = ir.VectorType(ir.IntType(16), LANES)
_Words = ir.VectorType(ir.IntType(32), LANES)
_UPPER = ir.Constant(_Words, [16] * LANES)


def _multiply(rows: int) -> Any:
    """`out[to[r] + c] = sum over k < terms of x[at[r] + k] * weight[first + k * PANEL + c]`, c < PANEL, of `rows` rows.

    The weights are float32, or uint16: the upper halves of float32.
    """

    def typed(context: Any, x: Any, at: Any, weight: Any, first: Any, terms: Any, out: Any, to: Any) -> Any:
        llvm.require_rows(x, weight, out)
        return types.void(x, llvm.places(rows), weight, types.intp, types.intp, out, llvm.places(rows)), build

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, weight, out = (llvm.values(context, builder, signature, arguments, i) for i in (0, 2, 5))
        _, _, features = context.codegen().magic_tuple()
        vectors = _SUMS if "+avx512f" in features else _SUMS_OF_AVX2
        width = min(PANEL, max(1, vectors // rows) * LANES)
        for left in range(0, PANEL, width):
            columns = range(left, min(left + width, PANEL), LANES)
            sums = [[llvm.register(builder, llvm.ZERO) for _ in columns] for _ in range(rows)]
            with cgutils.for_range(builder, arguments[4]) as loop:
                row = builder.add(arguments[3], builder.mul(loop.index, llvm.whole(PANEL)))
                weights = [_wide(builder, weight, row, column) for column in columns]
                for each, place in zip(sums, llvm.each(builder, arguments[1]), strict=True):
                    factor = llvm.repeated(builder, x, builder.add(place, loop.index))
                    llvm.add_products(builder, factor, weights, each)
            for each, place in zip(sums, llvm.each(builder, arguments[6]), strict=True):
                llvm.store_all(builder, each, out, builder.add(place, llvm.whole(left)))
        return context.get_dummy_value()

    return intrinsic(typed)


def _wide(builder: Any, weight: Any, offset: Any, column: int) -> Any:
    """LANES weights as float32."""
    if weight.type.pointee == ir.FloatType():
        return llvm.load(builder, weight, offset, column)
    place = builder.gep(weight, [builder.add(offset, llvm.whole(column))])
    halves = builder.load(builder.bitcast(place, _Halves.as_pointer()))
    halves.align = 2
    return builder.bitcast(builder.shl(builder.zext(halves, _Words), _UPPER), llvm.VECTOR)


multiply_one, multiply_two, multiply_three, multiply_four = (_multiply(rows) for rows in (1, 2, 3, 4))

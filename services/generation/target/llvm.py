"""Parts of inner loops that are written in LLVM's own words, on vectors of LANES float32.

Arrays are C-contiguous; a place in one is an offset in values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError

from services.generation.target.kernels import LANES

VECTOR = ir.VectorType(ir.FloatType(), LANES)
ZERO = ir.Constant(VECTOR, [0.0] * LANES)


def places(lines: int) -> Any:
    return types.UniTuple(types.intp, lines)  # type: ignore[no-untyped-call]


def each(builder: Any, places: Any) -> list[Any]:
    return cast("list[Any]", cgutils.unpack_tuple(builder, places))  # type: ignore[no-untyped-call]


def whole(number: int) -> Any:
    return ir.Constant(ir.IntType(64), number)


def require_rows(*arrays: Any) -> None:
    """For a typing function: raise TypingError for an array whose values do not lie one after the other."""
    for array in arrays:
        if getattr(array, "layout", None) != "C":
            raise TypingError(f"expected a C-contiguous array, found {array}")


def values(context: Any, builder: Any, signature: Any, arguments: Any, index: int) -> Any:
    """The address of the first value of the array that is argument `index`."""
    return context.make_array(signature.args[index])(context, builder, arguments[index]).data


def register(builder: Any, initial: Any) -> Any:
    """A variable that LLVM keeps in a register."""
    variable = cgutils.alloca_once(builder, VECTOR)  # type: ignore[no-untyped-call]
    builder.store(initial, variable)
    return variable


def _at(builder: Any, values: Any, offset: Any) -> Any:
    return builder.bitcast(builder.gep(values, [offset]), VECTOR.as_pointer())


def load(builder: Any, values: Any, offset: Any, column: int) -> Any:
    vector = builder.load(_at(builder, values, builder.add(offset, whole(column))))
    vector.align = 4
    return vector


def store_all(builder: Any, variables: Sequence[Any], values: Any, offset: Any) -> None:
    for number, variable in enumerate(variables):
        place = builder.add(offset, whole(number * LANES))
        builder.store(builder.load(variable), _at(builder, values, place)).align = 4


def repeated(builder: Any, values: Any, offset: Any) -> Any:
    """The value at a place, in every lane."""
    return in_every_lane(builder, builder.load(builder.gep(values, [offset])))


def in_every_lane(builder: Any, value: Any) -> Any:
    nothing = ir.Constant(VECTOR, ir.Undefined)
    one = builder.insert_element(nothing, value, ir.IntType(32)(0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


def add_products(builder: Any, factor: Any, terms: Sequence[Any], sums: Sequence[Any]) -> None:
    """Add factor * term to each sum, with one rounding."""
    fused = ir.FunctionType(VECTOR, (VECTOR, VECTOR, VECTOR))
    name = f"llvm.fma.v{LANES}f32"
    fma = cgutils.get_or_insert_function(builder.module, fused, name)  # type: ignore[no-untyped-call]
    for term, total in zip(terms, sums, strict=True):
        builder.store(builder.call(fma, (factor, term, builder.load(total))), total)

"""Inner loops of attention whose partial results stay in vector registers, as LLVM vectors of LANES float32.

The compiler vectorises a loop over columns well, but puts the sums back into memory after each term; here a loop over
the terms holds them in registers. Every lane is one sum of its own, with its terms in the order of the loop and one
rounding each (`fma` of IEEE 754), so the bits are those of the plain loop; a machine with shorter vectors does the
same in more instructions.

Arrays are C-contiguous float32; a place in one is an offset in values. Lines are query heads that go through the same
keys together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from services.generation.target.kernels import BLOCK, LANES

_Vector = ir.VectorType(ir.FloatType(), LANES)
_ZERO = ir.Constant(_Vector, [0.0] * LANES)


def _score(lines: int) -> Any:
    """`scores[to[l] + c] = sum over i < dim of queries[at[l] + i] * keys[key + i * BLOCK + c]`, c < BLOCK."""

    def typed(context: Any, queries: Any, at: Any, keys: Any, key: Any, dim: Any, scores: Any, to: Any) -> Any:
        return types.void(queries, _places(lines), keys, types.intp, types.intp, scores, _places(lines)), build

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, at, _, key, dim, _, to = arguments
        queries, keys, scores = (_values(context, builder, signature, arguments, i) for i in (0, 2, 5))
        columns = range(0, BLOCK, LANES)
        sums = [[_register(builder, _ZERO) for _ in columns] for _ in range(lines)]
        with cgutils.for_range(builder, dim) as loop:
            row = builder.add(key, builder.mul(loop.index, _whole(BLOCK)))
            terms = [_load(builder, keys, row, c) for c in columns]
            for line, place in enumerate(_each(builder, at)):
                factor = _repeated(builder, queries, builder.add(place, loop.index))
                _add_products(builder, factor, terms, sums[line])
        for line, place in enumerate(_each(builder, to)):
            _store_all(builder, sums[line], scores, place)
        return context.get_dummy_value()

    return intrinsic(typed)


def _mix(lines: int, width: int) -> Any:
    """`mixed[to[l] + c] += sum over j < count of weights[at[l] + j] * values[value + j * dim + c]`, c < width."""

    def typed(
        context: Any, weights: Any, at: Any, values: Any, value: Any, dim: Any, count: Any, mixed: Any, to: Any
    ) -> Any:
        intp, places = types.intp, _places(lines)
        return types.void(weights, places, values, intp, intp, intp, mixed, places), build

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, at, _, value, dim, count, _, to = arguments
        weights, values, mixed = (_values(context, builder, signature, arguments, i) for i in (0, 2, 6))
        columns = range(0, width, LANES)
        to_places = _each(builder, to)
        sums = [[_register(builder, _load(builder, mixed, place, c)) for c in columns] for place in to_places]
        with cgutils.for_range(builder, count) as loop:
            row = builder.add(value, builder.mul(loop.index, dim))
            terms = [_load(builder, values, row, c) for c in columns]
            for line, place in enumerate(_each(builder, at)):
                factor = _repeated(builder, weights, builder.add(place, loop.index))
                _add_products(builder, factor, terms, sums[line])
        for line, place in enumerate(to_places):
            _store_all(builder, sums[line], mixed, place)
        return context.get_dummy_value()

    return intrinsic(typed)


def _fold(combine: Callable[[Any, Any, Any], Any]) -> Any:
    """`lanes[l] = combine(lanes[l], row[at + v * LANES + l])` for each v < vectors in turn."""

    def typed(context: Any, row: Any, at: Any, vectors: Any, lanes: Any) -> Any:
        return types.void(row, types.intp, types.intp, lanes), build

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, at, vectors, _ = arguments
        row, lanes = (_values(context, builder, signature, arguments, i) for i in (0, 3))
        folded = _register(builder, _load(builder, lanes, _whole(0), 0))
        with cgutils.for_range(builder, vectors) as loop:
            term = _load(builder, row, builder.add(at, builder.mul(loop.index, _whole(LANES))), 0)
            builder.store(combine(builder, builder.load(folded), term), folded)
        _store_all(builder, [folded], lanes, _whole(0))
        return context.get_dummy_value()

    return intrinsic(typed)


def _larger(builder: Any, folded: Any, term: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", term, folded), term, folded)


def _places(lines: int) -> Any:
    return types.UniTuple(types.intp, lines)  # type: ignore[no-untyped-call]


def _each(builder: Any, places: Any) -> list[Any]:
    return cast("list[Any]", cgutils.unpack_tuple(builder, places))  # type: ignore[no-untyped-call]


def _whole(number: int) -> Any:
    return ir.Constant(ir.IntType(64), number)


def _values(context: Any, builder: Any, signature: Any, arguments: Any, index: int) -> Any:
    """The address of the first value of the array that is argument `index`."""
    return context.make_array(signature.args[index])(context, builder, arguments[index]).data


def _register(builder: Any, initial: Any) -> Any:
    """A variable that LLVM keeps in a register."""
    variable = cgutils.alloca_once(builder, _Vector)  # type: ignore[no-untyped-call]
    builder.store(initial, variable)
    return variable


def _at(builder: Any, values: Any, offset: Any) -> Any:
    return builder.bitcast(builder.gep(values, [offset]), _Vector.as_pointer())


def _load(builder: Any, values: Any, offset: Any, column: int) -> Any:
    vector = builder.load(_at(builder, values, builder.add(offset, _whole(column))))
    vector.align = 4
    return vector


def _store_all(builder: Any, variables: Sequence[Any], values: Any, offset: Any) -> None:
    for number, variable in enumerate(variables):
        place = builder.add(offset, _whole(number * LANES))
        builder.store(builder.load(variable), _at(builder, values, place)).align = 4


def _repeated(builder: Any, values: Any, offset: Any) -> Any:
    """One value in every lane."""
    nothing = ir.Constant(_Vector, ir.Undefined)
    one = builder.insert_element(nothing, builder.load(builder.gep(values, [offset])), ir.IntType(32)(0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


def _add_products(builder: Any, factor: Any, terms: Sequence[Any], sums: Sequence[Any]) -> None:
    """Add factor * term to each sum, with one rounding."""
    fused = ir.FunctionType(_Vector, (_Vector, _Vector, _Vector))
    name = f"llvm.fma.v{LANES}f32"
    fma = cgutils.get_or_insert_function(builder.module, fused, name)  # type: ignore[no-untyped-call]
    for term, total in zip(terms, sums, strict=True):
        builder.store(builder.call(fma, (factor, term, builder.load(total))), total)


score_pair, score_one = _score(2), _score(1)
mix_pair_wide, mix_pair, mix_pair_narrow = _mix(2, 4 * LANES), _mix(2, 2 * LANES), _mix(2, LANES)
mix_one_wide, mix_one, mix_one_narrow = _mix(1, 4 * LANES), _mix(1, 2 * LANES), _mix(1, LANES)
fold_sum = _fold(lambda builder, folded, term: builder.fadd(folded, term))
fold_largest = _fold(_larger)

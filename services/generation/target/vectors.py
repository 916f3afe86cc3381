"""Inner loops of attention whose partial results stay in vector registers, as LLVM vectors of LANES float32.

The compiler vectorises a loop over columns well, but puts the sums back into memory after each term; here a loop over
the terms holds them in registers. Every lane is one sum of its own, with its terms in the order of the loop and one
rounding each (`fma` of IEEE 754), so the bits are those of the plain loop; a machine with shorter vectors does the
same in more instructions.

Arrays are C-contiguous float32; a place in one is an offset in values. Lines are query heads that go through the same
keys together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from services.generation.target import llvm
from services.generation.target.kernels import BLOCK, LANES


def _score(lines: int) -> Any:
    """`scores[to[l] + c] = sum over i < dim of queries[at[l] + i] * keys[key + i * BLOCK + c]`, c < BLOCK."""

    def typed(context: Any, queries: Any, at: Any, keys: Any, key: Any, dim: Any, scores: Any, to: Any) -> Any:
        llvm.require_rows(queries, keys, scores)
        return types.void(queries, llvm.places(lines), keys, types.intp, types.intp, scores, llvm.places(lines)), build

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, at, _, key, dim, _, to = arguments
        queries, keys, scores = (llvm.values(context, builder, signature, arguments, i) for i in (0, 2, 5))
        columns = range(0, BLOCK, LANES)
        sums = [[llvm.register(builder, llvm.ZERO) for _ in columns] for _ in range(lines)]
        with cgutils.for_range(builder, dim) as loop:
            row = builder.add(key, builder.mul(loop.index, llvm.whole(BLOCK)))
            terms = [llvm.load(builder, keys, row, c) for c in columns]
            for line, place in enumerate(llvm.each(builder, at)):
                factor = llvm.repeated(builder, queries, builder.add(place, loop.index))
                llvm.add_products(builder, factor, terms, sums[line])
        for line, place in enumerate(llvm.each(builder, to)):
            llvm.store_all(builder, sums[line], scores, place)
        return context.get_dummy_value()

    return intrinsic(typed)


def _mix(lines: int, width: int) -> Any:
    """`mixed[to[l] + c] += sum over j < count of weights[at[l] + j] * values[value + j * dim + c]`, c < width."""

    def typed(
        context: Any, weights: Any, at: Any, values: Any, value: Any, dim: Any, count: Any, mixed: Any, to: Any
    ) -> Any:
        llvm.require_rows(weights, values, mixed)
        intp, places = types.intp, llvm.places(lines)
        return types.void(weights, places, values, intp, intp, intp, mixed, places), build

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, at, _, value, dim, count, _, to = arguments
        weights, values, mixed = (llvm.values(context, builder, signature, arguments, i) for i in (0, 2, 6))
        columns = range(0, width, LANES)
        to_places = llvm.each(builder, to)
        sums = [[llvm.register(builder, llvm.load(builder, mixed, place, c)) for c in columns] for place in to_places]
        with cgutils.for_range(builder, count) as loop:
            row = builder.add(value, builder.mul(loop.index, dim))
            terms = [llvm.load(builder, values, row, c) for c in columns]
            for line, place in enumerate(llvm.each(builder, at)):
                factor = llvm.repeated(builder, weights, builder.add(place, loop.index))
                llvm.add_products(builder, factor, terms, sums[line])
        for line, place in enumerate(to_places):
            llvm.store_all(builder, sums[line], mixed, place)
        return context.get_dummy_value()

    return intrinsic(typed)


def _fold(combine: Callable[[Any, Any, Any], Any]) -> Any:
    """`lanes[l] = combine(lanes[l], row[at + v * LANES + l])` for each v < vectors in turn."""

    def typed(context: Any, row: Any, at: Any, vectors: Any, lanes: Any) -> Any:
        llvm.require_rows(row, lanes)
        return types.void(row, types.intp, types.intp, lanes), build

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, at, vectors, _ = arguments
        row, lanes = (llvm.values(context, builder, signature, arguments, i) for i in (0, 3))
        folded = llvm.register(builder, llvm.load(builder, lanes, llvm.whole(0), 0))
        with cgutils.for_range(builder, vectors) as loop:
            term = llvm.load(builder, row, builder.add(at, builder.mul(loop.index, llvm.whole(LANES))), 0)
            builder.store(combine(builder, builder.load(folded), term), folded)
        llvm.store_all(builder, [folded], lanes, llvm.whole(0))
        return context.get_dummy_value()

    return intrinsic(typed)


def _larger(builder: Any, folded: Any, term: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", term, folded), term, folded)


score_pair, score_one = _score(2), _score(1)
mix_pair_wide, mix_pair, mix_pair_narrow = _mix(2, 4 * LANES), _mix(2, 2 * LANES), _mix(2, LANES)
mix_one_wide, mix_one, mix_one_narrow = _mix(1, 4 * LANES), _mix(1, 2 * LANES), _mix(1, LANES)
fold_sum = _fold(lambda builder, folded, term: builder.fadd(folded, term))
fold_largest = _fold(_larger)

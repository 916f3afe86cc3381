"""The arithmetic of one block: scores of its keys, their weights, its weighted values."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from services.generation.target.blocks import BLOCK
from services.generation.target.canonical.kernels.attention.cached import Cached
from services.generation.target.canonical.kernels.attention.layout import LANES, LINE
from services.generation.target.canonical.kernels.code import F32, I32, I64, POINTER, Code, Value
from services.generation.target.canonical.kernels.exponential import exponential
from services.generation.target.canonical.kernels.machine import Machine

HEADS = 4  # query heads that go through a block together
_VECTORS = BLOCK // LANES
_VECTOR = ir.VectorType(F32, LANES)


class Products:
    """The functions of a block's arithmetic, over keys and values `cached` so."""

    def __init__(self, module: ir.Module, machine: Machine, cached: Cached) -> None:
        self.cached = cached
        self.scores = {heads: _scores(module, machine, cached, heads) for heads in range(1, HEADS + 1)}
        self.weights = _weights(module, machine)
        self.mixes = {heads: _mix(module, machine, cached, heads) for heads in range(1, HEADS + 1)}


def _together(machine: Machine, heads: int) -> int:
    """Vectors beside each other whose sums fit the registers, for each of so many heads."""
    registers = 12 if machine.registers == 16 else 24
    fits = max(1, registers * machine.lanes // (LANES * heads))
    return min(_VECTORS, 1 << (fits.bit_length() - 1))


def _fetch(c: Code, start: Value, offset: Value, first: int, size: int) -> None:
    """`size` bytes from `first` on, behind an offset."""
    line = c.at(start, offset)
    for at in range(first, first + size, 64):
        c.prefetch(line, at)


def _scores(module: ir.Module, machine: Machine, cached: Cached, heads: int) -> Any:
    """scores(keys, queries, stride, dim, out, ahead): out[h][j] = sum over i of queries[h][i] * keys[i][j].

    i ascends, terms are added by fma, from +0. keys [dim][BLOCK], queries `stride` bytes apart, out [heads][BLOCK]. As
    many bytes as the keys have are fetched from `ahead`.
    """
    c = Code(module, machine, f"scores_{heads}", (POINTER, POINTER, I64, I64, POINTER, POINTER))
    keys, queries, stride, dim, out, ahead = c.arguments
    rows = [c.at(queries, c.mul(stride, h)) for h in range(heads)]
    together = _together(machine, heads)
    for first in range(0, _VECTORS, together):
        vectors = range(first, first + together)
        sums = [[c.variable(_VECTOR, c.vector(F32, 0.0, LANES)) for _ in vectors] for _ in rows]
        with c.loop(dim) as i:
            line = c.at(keys, c.mul(i, cached.size * BLOCK))
            terms = [cached.load(c, line, cached.size * LANES * v, LANES) for v in vectors]
            _fetch(c, ahead, c.mul(i, cached.size * BLOCK), cached.size * LANES * first, cached.size * LANES * together)
            for row, each in zip(rows, sums, strict=True):
                factor = c.repeated(c.load(row, c.mul(i, 4), F32), LANES)
                for term, total in zip(terms, each, strict=True):
                    c.put(c.fma(factor, term, c.get(total)), total)
        for h, each in enumerate(sums):
            for v, total in zip(vectors, each, strict=True):
                c.store(c.get(total), out, LINE * h + 4 * LANES * v)
    return c.done()


def _weights(module: ir.Module, machine: Machine) -> Any:
    """weights(scores, low, high, to): scores become exp(score - largest), +0 outside [low, high).

    to[0] = the largest score, to[1] = the sum of the weights, by halves of the block down to one.
    """
    c = Code(module, machine, "weights", (POINTER, I64, I64, POINTER))
    b, (scores, low, high, to) = c.b, c.arguments
    words = ir.VectorType(I32, LANES)
    bounds = [c.repeated(b.trunc(v, I32), LANES) for v in (low, high)]
    least = c.vector(F32, float("-inf"), LANES)
    seen, masks = [], []
    for v in range(_VECTORS):
        places = ir.Constant(words, list(range(LANES * v, LANES * (v + 1))))
        mask = b.and_(b.icmp_signed(">=", places, bounds[0]), b.icmp_signed("<", places, bounds[1]))
        masks.append(mask)
        seen.append(b.select(mask, c.load(scores, 4 * LANES * v, F32, LANES), least))

    def larger(p: Value, q: Value) -> Value:
        return b.select(b.fcmp_ordered(">", p, q), p, q)

    largest = c.folded(larger(larger(seen[0], seen[2]), larger(seen[1], seen[3])), larger)
    top = c.repeated(largest, LANES)
    zero = c.vector(F32, 0.0, LANES)
    weights = [b.select(m, exponential(c, b.fsub(s, top)), zero) for m, s in zip(masks, seen, strict=True)]
    for v, weight in enumerate(weights):
        c.store(weight, scores, 4 * LANES * v)
    total = c.folded(b.fadd(b.fadd(weights[0], weights[2]), b.fadd(weights[1], weights[3])), b.fadd)
    c.store(largest, to, 0)
    c.store(total, to, 4)
    return c.done()


def _mix(module: ir.Module, machine: Machine, cached: Cached, heads: int) -> Any:
    """mix(values, padded, low, high, weights, out, stride, ahead): out[h][i] = sum over j of weights[h][j] values[j][i]

    j ascends from low to high, terms are added by fma, from +0. out[h] `stride` bytes apart. As many bytes as the
    values have are fetched from `ahead`.
    """
    kinds = (POINTER, I64, I64, I64, POINTER, POINTER, I64, POINTER)
    c = Code(module, machine, f"mix_{heads}", kinds)
    values, padded, low, high, weights, out, stride, ahead = c.arguments

    def columns(i: Value, vectors: int) -> None:
        sums = [[c.variable(_VECTOR, c.vector(F32, 0.0, LANES)) for _ in range(vectors)] for _ in range(heads)]
        with c.loop(high, low) as j:
            at = c.mul(c.add(c.mul(j, padded), i), cached.size)
            line = c.at(values, at)
            terms = [cached.load(c, line, cached.size * LANES * v, LANES) for v in range(vectors)]
            _fetch(c, ahead, at, 0, cached.size * LANES * vectors)
            for h, each in enumerate(sums):
                factor = c.repeated(c.load(weights, c.add(c.mul(j, 4), LINE * h), F32), LANES)
                for term, total in zip(terms, each, strict=True):
                    c.put(c.fma(factor, term, c.get(total)), total)
        for h, each in enumerate(sums):
            place = c.at(c.at(out, c.mul(stride, h)), c.mul(i, 4))
            for v, total in enumerate(each):
                c.store(c.get(total), place, 4 * LANES * v)

    together = _together(machine, heads)
    whole = c.sub(padded, c.rem(padded, LANES * together))
    with c.loop(whole, step=LANES * together) as i:
        columns(i, together)
    with c.loop(padded, whole, LANES) as i:
        columns(i, 1)
    return c.done()

"""Attention over one block of keys: scores, weights, weighted values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from services.generation.target.blocks import BLOCK
from services.generation.target.kernels.attention.layout import LANES, LINE, Cached, Layout, Path, seen
from services.generation.target.kernels.code import F32, I8, I32, I64, POINTER, Code, Value, calling
from services.generation.target.kernels.machine import Machine
from services.generation.target.kernels.records import FIELDS, PASS, Words
from services.generation.target.kernels.row_operations import capped, decay

HEADS = 6  # query heads, of one row or of several, that a key is loaded for
_VECTORS = BLOCK // LANES


class Products:
    """The functions of a block's arithmetic, over keys and values `cached` so."""

    def __init__(self, module: ir.Module, machine: Machine, cached: Cached) -> None:
        self.cached = cached
        self.scores = {heads: _scores(module, machine, cached, heads) for heads in range(1, HEADS + 1)}
        self.weights = _weights(module, machine)
        self.mixes = {heads: _mix(module, machine, cached, heads) for heads in range(1, HEADS + 1)}


_Part = Callable[[int], Value]


def _together(machine: Machine, heads: int) -> int:
    """Registers beside each other whose sums fit the registers, for each of so many heads."""
    fits = (12 if machine.registers == 16 else 24) // heads
    return min(BLOCK // machine.lanes, 1 << (fits.bit_length() - 1))


def _add_products(c: Code, sums: list[list[Value]], factor: _Part, term: _Part) -> None:
    """sums[h][v] += factor(h) * term(v), by fma. Registers hold the factors where there is room, else the terms; the
    others come one by one.
    """
    heads, vectors = len(sums), len(sums[0])

    def add(h: int, v: int, factor: Value, term: Value) -> None:
        c.put(c.fma(factor, term, c.get(sums[h][v])), sums[h][v])

    if heads * vectors + heads + 1 <= c.machine.registers:
        factors = [factor(h) for h in range(heads)]
        for v in range(vectors):
            one = term(v)
            for h in range(heads):
                add(h, v, factors[h], one)
        return
    terms = [term(v) for v in range(vectors)]
    for h in range(heads):
        one = factor(h)
        for v in range(vectors):
            add(h, v, one, terms[v])


def _sums(c: Code, heads: int, vectors: int) -> list[list[Value]]:
    """Variables for vectors of sums of each head, +0."""
    zero = c.vector(F32, 0.0, c.machine.lanes)
    return [[c.variable(zero.type, zero) for _ in range(vectors)] for _ in range(heads)]


def _fetch(c: Code, start: Value, offset: Value, size: int) -> None:
    """`size` bytes behind an offset."""
    line = c.at(start, offset)
    for at in range(0, size, 64):
        c.prefetch(line, at)


def _scores(module: ir.Module, machine: Machine, cached: Cached, heads: int) -> Any:
    """scores(keys, queries, stride, dim, out, ahead): out[h][j] = sum over i of queries[h][i] * keys[i][j].

    i ascends, terms are added by fma, from +0. keys [dim][BLOCK], queries `stride` bytes apart, out [heads][BLOCK]. As
    many bytes as the keys have are fetched from `ahead`.
    """
    c = Code(module, machine, f"scores_{heads}", (POINTER, POINTER, I64, I64, POINTER, POINTER))
    keys, queries, stride, dim, out, ahead = c.arguments
    rows = [c.at(queries, c.mul(stride, h)) for h in range(heads)]
    together, lanes = _together(machine, heads), machine.lanes
    with c.loop(BLOCK, step=lanes * together) as first:
        sums = _sums(c, heads, together)
        with c.loop(dim) as i:
            at = c.mul(c.add(c.mul(i, BLOCK), first), cached.size)
            line = c.at(keys, at)
            with c.when(c.compare(first, "==", 0)):
                _fetch(c, ahead, at, cached.size * BLOCK)
            _add_products(
                c, sums, lambda h: c.repeated(c.load(rows[h], c.mul(i, 4), F32), lanes),
                lambda v: cached.load(c, line, cached.size * lanes * v, lanes),
            )  # fmt: skip
        for h, each in enumerate(sums):
            for v, total in enumerate(each):
                c.store(c.get(total), c.at(out, c.mul(first, 4)), LINE * h + 4 * lanes * v)
    return c.done()


def _weights(module: ir.Module, machine: Machine) -> Any:
    """weights(scores, heads, low, high, to, stride): each head's scores become exp(score - largest), +0 outside
    [low, high).

    to[0] = the largest score, to[1] = the sum of the weights, by halves of the block down to one; the next head's are
    `stride` bytes behind.
    """
    c = Code(module, machine, "weights", (POINTER, I64, I64, I64, POINTER, I64))
    b, (scores, heads, low, high, to, stride) = c.b, c.arguments
    bounds = [c.repeated(b.trunc(v, I32), LANES) for v in (low, high)]
    least = c.vector(F32, float("-inf"), LANES)
    masks = []
    for v in range(_VECTORS):
        places = c.vector(I32, range(LANES * v, LANES * (v + 1)), LANES)
        masks.append(b.and_(b.icmp_signed(">=", places, bounds[0]), b.icmp_signed("<", places, bounds[1])))

    def larger(p: Value, q: Value) -> Value:
        return b.select(b.fcmp_ordered(">", p, q), p, q)

    with c.loop(heads) as head:
        line, end = c.at(scores, c.mul(head, LINE)), c.at(to, c.mul(head, stride))
        seen = [b.select(mask, c.load(line, 4 * LANES * v, F32, LANES), least) for v, mask in enumerate(masks)]
        largest = c.folded(larger(larger(seen[0], seen[2]), larger(seen[1], seen[3])), larger)
        top = c.repeated(largest, LANES)
        weights = [decay(c, b.fsub(score, top)) for score in seen]
        for v, weight in enumerate(weights):
            c.store(weight, line, 4 * LANES * v)
        total = c.folded(b.fadd(b.fadd(weights[0], weights[2]), b.fadd(weights[1], weights[3])), b.fadd)
        c.store(largest, end, 0)
        c.store(total, end, 4)
    return c.done()


def _mix(module: ir.Module, machine: Machine, cached: Cached, heads: int) -> Any:
    """mix(values, padded, low, high, weights, out, stride, ahead): out[h][i] = sum over j of weights[h][j] values[j][i]

    j ascends from low to high, terms are added by fma, from +0. out[h] `stride` bytes apart. As many bytes as the
    values have are fetched from `ahead`.
    """
    kinds = (POINTER, I64, I64, I64, POINTER, POINTER, I64, POINTER)
    c = Code(module, machine, f"mix_{heads}", kinds)
    values, padded, low, high, weights, out, stride, ahead = c.arguments

    lanes = machine.lanes

    def columns(i: Value, vectors: int) -> None:
        sums = _sums(c, heads, vectors)
        with c.loop(high, low) as j:
            at = c.mul(c.add(c.mul(j, padded), i), cached.size)
            line = c.at(values, at)
            with c.when(c.compare(i, "==", 0)), c.loop(c.mul(padded, cached.size), step=64) as rest:
                c.prefetch(c.at(ahead, at), rest)
            _add_products(
                c, sums, lambda h: c.repeated(c.load(weights, c.add(c.mul(j, 4), LINE * h), F32), lanes),
                lambda v: cached.load(c, line, cached.size * lanes * v, lanes),
            )  # fmt: skip
        for h, each in enumerate(sums):
            place = c.at(c.at(out, c.mul(stride, h)), c.mul(i, 4))
            for v, total in enumerate(each):
                c.store(c.get(total), place, 4 * lanes * v)

    together = _together(machine, heads)
    whole = c.sub(padded, c.rem(padded, lanes * together))
    with c.loop(whole, step=lanes * together) as i:
        columns(i, together)
    with c.loop(padded, whole, lanes) as i:
        columns(i, 1)
    return c.done()


_BYTES = 32  # copied at a time: sixteen elements of two bytes


def block_function(module: ir.Module, machine: Machine, products: Products) -> Any:
    """block(record, pass, scratch, queries, row, rows, kv, block, out): a block's results [rows][heads] for the
    query heads of a key head, of one row, or of several rows of a sequence that all see the block whole.

    The keys that lie behind these, of the next key head, are fetched meanwhile.
    """
    c = Code(module, machine, "attend_block", (POINTER, POINTER, POINTER, POINTER, I64, I64, I64, I64, POINTER))
    block = _Block(c, products)
    block.mix(block.values_in_order())
    return c.done()


class _Block:
    """The code of one block, in the order in which its methods are called."""

    def __init__(self, c: Code, products: Products) -> None:
        record, passed, scratch, self.queries, self.row, rows, self.kv, self.number, self.out = c.arguments
        self.c, self.products, self.size = c, products, products.cached.size
        self.record, self.passed = Words(c, record, FIELDS["attend"], 2), Words(c, passed, PASS, 0)
        self.layout, self.padded = Layout(c, self.record, scratch), self.record.padded
        self.heads = c.mul(rows, self.layout.group_size)
        first, self.length = seen(c, self.record, self.passed, self.row)
        self.start = c.mul(self.number, BLOCK)
        self.low = c.larger(c.sub(first, self.start), 0)
        self.high = c.smaller(c.sub(self.length, self.start), BLOCK)
        self.path = Path(c, self.passed, self.row)
        self.run, self.table = self.path.run, self.path.table
        self.keys_size = c.mul(self.record.dim, self.size * BLOCK)
        self.values_size = c.mul(self.padded, self.size * BLOCK)

    def values_in_order(self) -> Value:
        """Score the keys; returns the values, where they lie side by side or copied."""
        c = self.c

        def straight() -> None:
            self._score(c.index(self.table, self.number), self.layout.scores)

        is_straight = c.compare(self.run, ">=", c.smaller(self.length, c.add(self.start, BLOCK)))
        c.either(is_straight, straight, self._gather)
        return c.b.select(is_straight, self._values(c.b.select(is_straight, self.number, c.i(0))), self.layout.values)

    def _values(self, block: Value) -> Value:
        place = self._place(self.c.index(self.table, block))
        return self.c.at(self.record.values, self.c.mul(place, self.values_size))

    def mix(self, values: Value) -> None:
        """Weights of the scores, then each head's weighted values to `out`."""
        c, layout, padded = self.c, self.layout, self.padded
        is_capped = c.b.fcmp_ordered(">", self.record.cap, c.real(0.0))
        with c.when(is_capped), c.loop(c.mul(self.heads, LINE), step=4 * LANES) as at:
            c.store(capped(c, c.load(layout.scores, at, F32, LANES), self.record.cap), layout.scores, at)
        ends = c.at(self.out, c.mul(padded, 4))
        c.call(self.products.weights, layout.scores, self.heads, self.low, self.high, ends, layout.result)
        ahead = c.at(self.record.keys, c.mul(c.add(self._place(c.index(self.table, self.number)), 1), self.keys_size))
        self._by_heads(
            self.products.mixes,
            lambda head: (values, padded, self.low, self.high, c.at(layout.scores, c.mul(head, LINE)),
                          c.at(self.out, c.mul(head, layout.result)), layout.result, ahead),
        )  # fmt: skip

    def _place(self, number: Value) -> Value:
        """Where the keys and values of a block of the cache are, counted in blocks of one key head."""
        return self.c.add(self.c.mul(number, self.record.kv_heads), self.kv)

    def _score(self, number: Value, to: Value) -> None:
        """Scores of all keys of a block of the cache."""
        c, padded = self.c, self.padded
        keys = c.at(self.record.keys, c.mul(self._place(number), self.keys_size))
        ahead = c.at(self.record.values, c.mul(self._place(number), self.values_size))
        self._by_heads(
            self.products.scores,
            lambda head: (keys, c.at(self.queries, c.mul(c.mul(head, padded), 4)), c.mul(padded, 4), self.record.dim,
                          c.at(to, c.mul(head, LINE)), ahead),
        )  # fmt: skip

    def _gather(self) -> None:
        """Scores and values of a block whose keys do not lie side by side, in the order of their positions.

        A key's score does not depend on its neighbours, so blocks of the cache are scored whole, one after another.
        """
        c = self.c
        scored = c.variable(I64, c.i(-1))
        with c.loop(self.high) as j:
            slot = self.path.slot(c.add(self.start, j))
            number, offset = c.div(slot, BLOCK), c.rem(slot, BLOCK)
            with c.when(c.compare(number, "!=", c.get(scored))):
                self._score(number, self.layout.gathered)
                c.put(number, scored)
            self._copy(number, offset, j)

    def _copy(self, number: Value, offset: Value, j: Value) -> None:
        """A key's scores and its value to the j-th place."""
        c, layout = self.c, self.layout
        with c.loop(layout.group_size) as head:
            at = c.mul(head, LINE)
            score = c.load(c.at(layout.gathered, at), c.mul(offset, 4), F32)
            c.store(score, c.at(layout.scores, at), c.mul(j, 4))
        stride = c.mul(self.padded, self.size)
        block = c.at(self.record.values, c.mul(c.mul(self._place(number), BLOCK), stride))
        line, to = c.at(block, c.mul(offset, stride)), c.at(layout.values, c.mul(j, stride))
        with c.loop(stride, step=_BYTES) as at:
            c.store(c.load(line, at, I8, _BYTES), to, at)

    def _by_heads(self, functions: dict[int, Any], arguments: Any) -> None:
        """Call functions[n](*arguments(first head)) for heads in groups of up to HEADS."""
        c = self.c
        with c.loop(self.heads, step=HEADS) as head:
            values = arguments(head)
            cases = {n: calling(c, function, *values) for n, function in functions.items()}
            c.choose(c.smaller(c.sub(self.heads, head), HEADS), cases)

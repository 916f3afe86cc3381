"""Attention over one block of keys: scores, weights, weighted values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from llvmlite import ir

from services.generation.target.blocks import BLOCK
from services.generation.target.kernels.attention.form import Form, Place, Products
from services.generation.target.kernels.attention.layout import LANES, LINE, Layout, Path, seen
from services.generation.target.kernels.code import F32, I32, I64, POINTER, Code, Value
from services.generation.target.kernels.machine import Machine
from services.generation.target.kernels.records import FIELDS, PASS, Words
from services.generation.target.kernels.row_operations import capped, decay

_VECTORS = BLOCK // LANES
_TOGETHER = 3  # heads whose weights are computed together: a single head waits for its largest score and its sums

Put = Callable[[Code, Value, Sequence[Value], Sequence[Value], Value, Value], None]
"""put(code, line, weights, masks, values, padded): store a head's weights in its line of the scores; `masks` are of
visible positions, `values` are the block's.
"""


def weights_function(module: ir.Module, machine: Machine, put: Put) -> Any:
    """`Products.weights`; `put` stores the weights."""
    c = Code(module, machine, "weights", (POINTER, I64, I64, I64, POINTER, I64, POINTER, I64))
    b, (scores, heads, low, high, to, stride, values, padded) = c.b, c.arguments
    bounds = [c.repeated(b.trunc(v, I32), LANES) for v in (low, high)]
    least = c.vector(F32, float("-inf"), LANES)
    masks = []
    for v in range(_VECTORS):
        places = c.vector(I32, range(LANES * v, LANES * (v + 1)), LANES)
        masks.append(b.and_(b.icmp_signed(">=", places, bounds[0]), b.icmp_signed("<", places, bounds[1])))

    def larger(p: Value, q: Value) -> Value:
        return b.select(b.fcmp_ordered(">", p, q), p, q)

    def several(first: Value, count: int) -> None:
        lines = [c.at(scores, c.mul(c.add(first, h), LINE)) for h in range(count)]
        ends = [c.at(to, c.mul(c.add(first, h), stride)) for h in range(count)]
        seen = [
            [b.select(mask, c.load(line, 4 * LANES * v, F32, LANES), least) for v, mask in enumerate(masks)]
            for line in lines
        ]
        largest = [c.folded(larger(larger(each[0], each[2]), larger(each[1], each[3])), larger) for each in seen]
        tops = [c.repeated(top, LANES) for top in largest]
        weights = [[decay(c, b.fsub(score, top)) for score in each] for each, top in zip(seen, tops, strict=True)]
        for line, each in zip(lines, weights, strict=True):
            put(c, line, each, masks, values, padded)
        for end, top, each in zip(ends, largest, weights, strict=True):
            total = c.folded(b.fadd(b.fadd(each[0], each[2]), b.fadd(each[1], each[3])), b.fadd)
            c.store(top, end, 0)
            c.store(total, end, 4)

    rest = c.rem(heads, _TOGETHER)
    with c.loop(c.sub(heads, rest), step=_TOGETHER) as head:
        several(head, _TOGETHER)
    with c.loop(heads, c.sub(heads, rest)) as head:
        several(head, 1)
    return c.done()


def fetch(c: Code, start: Value, offset: Value, size: int) -> None:
    """Prefetch `size` bytes from an offset on into the second-level cache: the first would evict them before use."""
    line = c.at(start, offset)
    for at in range(0, size, 64):
        c.prefetch(line, at, locality=2)


def in_columns(c: Code, padded: Value, together: int, columns: Callable[[Value, int], None]) -> None:
    """Call columns(first column, vectors) for all columns of a value: `together` vectors at a time, then one by one."""
    lanes = c.machine.lanes
    whole = c.sub(padded, c.rem(padded, lanes * together))
    with c.loop(whole, step=lanes * together) as i:
        columns(i, together)
    with c.loop(padded, whole, lanes) as i:
        columns(i, 1)


def block_function(module: ir.Module, machine: Machine, form: Form, products: Products) -> Any:
    """block(record, pass, scratch, queries, row, rows, kv, block, out): a block's results [rows][heads] for the query
    heads of a key head, for one row, or for several rows of a sequence that see the whole block.

    Keys and values of the sequence's next block are prefetched meanwhile.
    """
    c = Code(module, machine, "attend_block", (POINTER, POINTER, POINTER, POINTER, I64, I64, I64, I64, POINTER))
    block = _Block(c, form, products)
    block.mix(block.values_in_order())
    return c.done()


class _Block:
    """The code of one block, in the order in which its methods are called."""

    def __init__(self, c: Code, form: Form, products: Products) -> None:
        record, passed, scratch, self.queries, self.row, rows, self.kv, self.number, self.out = c.arguments
        self.c, self.form, self.products = c, form, products
        self.record, self.passed = Words(c, record, FIELDS["attend"], 2), Words(c, passed, PASS, 0)
        self.layout, self.padded = Layout(c, self.record, scratch), self.record.padded
        self.heads = c.mul(rows, self.layout.group_size)
        first, self.length = seen(c, self.record, self.passed, self.row)
        self.start = c.mul(self.number, BLOCK)
        self.low = c.larger(c.sub(first, self.start), 0)
        self.high = c.smaller(c.sub(self.length, self.start), BLOCK)
        self.path = Path(c, self.passed, self.row)
        self.run, self.table = self.path.run, self.path.table
        last = c.div(c.larger(c.sub(self.run, 1), 0), BLOCK)
        self.after = c.index(self.table, c.smaller(c.add(self.number, 1), last))
        self.keys_size, self.values_size = form.key_bytes(c, self.record.dim), form.value_bytes(c, self.padded)

    def values_in_order(self) -> Value:
        """Compute the scores; return the address of the values in order of positions, which may be copied."""
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
        """Compute weights from the scores, then each head's weighted values in `out`."""
        c, layout, padded = self.c, self.layout, self.padded
        is_capped = c.b.fcmp_ordered(">", self.record.cap, c.real(0.0))
        with c.when(is_capped), c.loop(c.mul(self.heads, LINE), step=4 * LANES) as at:
            c.store(capped(c, c.load(layout.scores, at, F32, LANES), self.record.cap), layout.scores, at)
        ends = c.at(self.out, c.mul(padded, 4))
        bounds = self.heads, self.low, self.high
        c.call(self.products.weights, layout.scores, *bounds, ends, layout.result, values, padded)
        ahead = c.at(self.record.values, c.mul(self._place(self.after), self.values_size))
        self._by_heads(
            self.products.mixes,
            lambda head: (values, padded, self.low, self.high, c.at(layout.scores, c.mul(head, LINE)),
                          c.at(self.out, c.mul(head, layout.result)), layout.result, ahead),
        )  # fmt: skip

    def _place(self, number: Value) -> Value:
        """The index of a block's keys and values among the blocks of single key heads."""
        return self.c.add(self.c.mul(number, self.record.kv_heads), self.kv)

    def _score(self, number: Value, to: Value) -> None:
        """Compute scores of all keys of a block of the cache."""
        c, padded = self.c, self.padded
        keys = c.at(self.record.keys, c.mul(self._place(number), self.keys_size))
        ahead = c.at(self.record.keys, c.mul(self._place(self.after), self.keys_size))
        self._by_heads(
            self.products.scores,
            lambda head: (keys, c.at(self.queries, c.mul(c.mul(head, padded), 4)), c.mul(padded, 4), self.record.dim,
                          c.at(to, c.mul(head, LINE)), ahead),
        )  # fmt: skip

    def _gather(self) -> None:
        """Collect scores and values of a block whose keys are in several blocks of the cache, in order of positions.

        A key's score does not depend on its neighbours, so whole blocks of the cache are scored, one after another.
        """
        c = self.c
        scored = c.variable(c.i(-1))
        with c.loop(self.high) as j:
            slot = self.path.slot(c.add(self.start, j))
            number, offset = c.div(slot, BLOCK), c.rem(slot, BLOCK)
            with c.when(c.compare(number, "!=", c.get(scored))):
                self._score(number, self.layout.gathered)
                c.put(number, scored)
            self._copy(number, offset, j)

    def _copy(self, number: Value, offset: Value, j: Value) -> None:
        """Copy a key's scores and its value to place j."""
        c, layout = self.c, self.layout
        with c.loop(layout.group_size) as head:
            at = c.mul(head, LINE)
            score = c.load(c.at(layout.gathered, at), c.mul(offset, 4), F32)
            c.store(score, c.at(layout.scores, at), c.mul(j, 4))
        block = c.at(self.record.values, c.mul(self._place(number), self.values_size))
        self.form.copy_value(c, Place(block, offset), Place(layout.values, j), self.padded)

    def _by_heads(self, functions: dict[int, Any], arguments: Any) -> None:
        """Call functions[n](*arguments(first head)) for groups of up to max(functions) heads."""
        c, most = self.c, max(functions)
        with c.loop(self.heads, step=most) as head:
            values = arguments(head)
            cases = {n: partial(c.call, function, *values) for n, function in functions.items()}
            c.choose(c.smaller(c.sub(self.heads, head), most), cases)

"""One block of keys: its result for the query heads of a key head, wherever in the cache the keys lie."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from services.generation.target.blocks import BLOCK
from services.generation.target.canonical.kernels.attention.layout import LANES, LINE, Layout, seen
from services.generation.target.canonical.kernels.attention.products import HEADS, Products
from services.generation.target.canonical.kernels.code import F32, I8, I64, POINTER, Code, Value, calling
from services.generation.target.canonical.kernels.exponential import capped
from services.generation.target.canonical.kernels.machine import Machine
from services.generation.target.canonical.kernels.records import FIELDS, PASS, Words

_BYTES = 32  # copied at a time: sixteen elements of two bytes


def block_function(module: ir.Module, machine: Machine, products: Products) -> Any:
    """block(record, pass, scratch, row, kv, block, out, next): a block's result for the query heads of a key head.

    The keys of block `next` are fetched meanwhile: they do not lie behind these, where the CPU would look for itself.
    """
    c = Code(module, machine, "attend_block", (POINTER, POINTER, POINTER, I64, I64, I64, POINTER, I64))
    block = _Block(c, products)
    block.mix(block.values_in_order())
    return c.done()


class _Block:
    """The code of one block, in the order in which its methods are called."""

    def __init__(self, c: Code, products: Products) -> None:
        record, passed, scratch, self.row, self.kv, self.number, self.out, self.next = c.arguments
        self.c, self.products, self.size = c, products, products.cached.size
        self.record, self.passed = Words(c, record, FIELDS["attend"], 2), Words(c, passed, PASS, 0)
        self.layout, self.padded = Layout(c, self.record, scratch), self.record.padded
        query = c.add(c.mul(self.row, self.record.heads), c.mul(self.kv, self.layout.sharing))
        self.queries = c.at(self.record.queries, c.mul(c.mul(query, self.padded), 4))
        first, self.length = seen(c, self.record, self.passed, self.row)
        self.start = c.mul(self.number, BLOCK)
        self.low = c.larger(c.sub(first, self.start), 0)
        self.high = c.smaller(c.sub(self.length, self.start), BLOCK)
        self.run = c.index(self.passed.contiguous, self.row)
        line = c.mul(c.index(self.passed.sequences, self.row), self.passed.table_stride)
        self.table = c.at(self.passed.tables, c.mul(line, 4))
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
        with c.when(is_capped), c.loop(c.mul(layout.sharing, LINE), step=4 * LANES) as at:
            c.store(capped(c, c.load(layout.scores, at, F32, LANES), self.record.cap), layout.scores, at)
        with c.loop(layout.sharing) as head:
            ends = c.at(c.at(self.out, c.mul(head, layout.result)), c.mul(padded, 4))
            c.call(self.products.weights, c.at(layout.scores, c.mul(head, LINE)), self.low, self.high, ends)
        ahead = c.at(self.record.keys, c.mul(self._place(c.index(self.table, self.next)), self.keys_size))
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
        branch = c.at(self.passed.branches, c.mul(c.index(self.passed.branch_starts, self.row), 4))
        scored = c.variable(I64, c.i(-1))
        with c.loop(self.high) as j:
            slot = self._slot(c.add(self.start, j), branch)
            number, offset = c.div(slot, BLOCK), c.rem(slot, BLOCK)
            with c.when(c.compare(number, "!=", c.get(scored))):
                self._score(number, self.layout.gathered)
                c.put(number, scored)
            self._copy(number, offset, j)

    def _slot(self, position: Value, branch: Value) -> Value:
        """Of the key at a position: by the table, or from `run` on by the row's own branch of the tree."""
        c = self.c
        slot = c.variable(I64, c.i(0))

        def in_table() -> None:
            number = c.index(self.table, c.div(position, BLOCK))
            c.put(c.add(c.mul(number, BLOCK), c.rem(position, BLOCK)), slot)

        def in_branch() -> None:
            c.put(c.index(branch, c.sub(position, self.run)), slot)

        c.either(c.compare(position, "<", self.run), in_table, in_branch)
        return c.get(slot)

    def _copy(self, number: Value, offset: Value, j: Value) -> None:
        """A key's scores and its value to the j-th place."""
        c, layout = self.c, self.layout
        with c.loop(layout.sharing) as head:
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
        c, sharing = self.c, self.layout.sharing
        with c.loop(sharing, step=HEADS) as head:
            values = arguments(head)
            cases = {n: calling(c, function, *values) for n, function in functions.items()}
            c.choose(c.smaller(c.sub(sharing, head), HEADS), cases)

"""Attention over the paged key/value cache: `docs/numerics.md`, Attention.

The keys that a row sees are cut into blocks of 64 by their position. Each block is finished by itself (its largest
score, the sum of its weights, its weighted values); blocks are joined in ascending order. So it makes no difference
which rows go through a block together, which member of the team takes which block, or where in the cache a key lies.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from services.generation.target.blocks import BLOCK
from services.generation.target.canonical.kernels.attention.cached import Cached
from services.generation.target.canonical.kernels.code import F32, I8, I32, I64, POINTER, Code, Value, calling
from services.generation.target.canonical.kernels.exponential import exponential
from services.generation.target.canonical.kernels.machine import Machine
from services.generation.target.canonical.kernels.records import FIELDS, PASS, Kernel, Words

LANES = 16
HEADS = 4  # query heads that go through a block together
_SPLIT = 8  # units of work for each member below which blocks, not rows, are shared out
_VECTORS = BLOCK // LANES
_LINE = 4 * BLOCK
_BYTES = 32  # copied at a time: sixteen elements of two bytes
_VECTOR = ir.VectorType(F32, LANES)


def scratch_bytes(sharing: int, padded: int) -> int:
    """Of one member: scores of all heads twice, values of a block, one block's result and the row's."""
    return 2 * sharing * _LINE + _LINE * padded + 2 * sharing * result_bytes(padded)


def result_bytes(padded: int) -> int:
    """Of a head's result: weighted values [padded], largest score, sum of weights."""
    return 4 * (padded + LANES)


def most_split(members: int) -> int:
    """Rows times key heads whose blocks may be shared out at once."""
    return _SPLIT * members


class _Layout:
    """A row's place in the record, and the parts of the scratch."""

    def __init__(self, c: Code, record: Any, scratch: Value) -> None:
        self.sharing = c.div(record.heads, record.kv_heads)
        self.result = c.mul(c.add(record.padded, LANES), 4)
        lines = c.mul(self.sharing, _LINE)
        self.scores, self.gathered = scratch, c.at(scratch, lines)
        self.values = c.at(scratch, c.mul(lines, 2))
        self.one = c.at(self.values, c.mul(record.padded, _LINE))
        self.all = c.at(self.one, c.mul(self.sharing, self.result))


def build(module: ir.Module, machine: Machine, cached: Cached) -> None:
    """Add `attend` and `combine`: with few rows, members share out blocks, and their results are joined afterwards."""
    parts = _Parts(module, machine, cached)
    _attend(module, machine, parts)
    _combine(module, machine, parts)


class _Parts:
    """The functions that both kernels are made of."""

    def __init__(self, module: ir.Module, machine: Machine, cached: Cached) -> None:
        self.cached = cached
        self.scores = {heads: _scores(module, machine, cached, heads) for heads in range(1, HEADS + 1)}
        self.weights = _weights(module, machine)
        self.mixes = {heads: _mix(module, machine, cached, heads) for heads in range(1, HEADS + 1)}
        self.join = _join(module, machine)
        self.finish = _finish(module, machine)
        self.block = _block(module, machine, self)


def _attend(module: ir.Module, machine: Machine, parts: _Parts) -> None:
    kernel = Kernel(module, machine, "attend")
    c, record, passed = kernel.code, kernel.record, kernel.passed
    scratch = kernel.scratch()
    layout = _Layout(c, record, scratch)
    rows, kv_heads = passed.rows, record.kv_heads
    arguments = (c.arguments[0], c.arguments[1], scratch)

    def by_rows() -> None:
        first, last = kernel.share(c.mul(rows, kv_heads))
        with c.loop(last, first) as unit:
            kv, row = c.div(unit, rows), c.rem(unit, rows)
            begin, end = _blocks(c, record, passed, row)
            with c.loop(end, begin) as block:
                c.call(parts.block, *arguments, row, kv, block, layout.one)
                c.call(parts.join, layout.all, layout.one, layout.sharing, record.padded, _flag(c, block, begin))
            c.call(parts.finish, c.arguments[0], layout.all, row, kv)

    def by_blocks() -> None:
        most = passed.table_stride
        with c.loop(c.mul(rows, kv_heads)) as unit:
            kv, row = c.div(unit, rows), c.rem(unit, rows)
            begin, end = _blocks(c, record, passed, row)
            offset = c.rem(c.add(unit, kernel.members), kernel.members)
            start = c.add(begin, c.rem(c.add(c.sub(kernel.member, offset), kernel.members), kernel.members))
            with c.loop(end, start, kernel.members) as block:
                number = c.add(c.mul(unit, most), block)
                out = c.at(record.partial, c.mul(c.mul(number, layout.sharing), layout.result))
                c.call(parts.block, *arguments, row, kv, block, out)

    c.either(_is_split(kernel), by_blocks, by_rows)
    c.done()


def _combine(module: ir.Module, machine: Machine, parts: _Parts) -> None:
    """Join the blocks' results of rows whose blocks were shared out."""
    kernel = Kernel(module, machine, "attend", "combine")
    c, record, passed = kernel.code, kernel.record, kernel.passed
    layout = _Layout(c, record, kernel.scratch())
    rows, most = passed.rows, passed.table_stride
    with c.when(_is_split(kernel)):
        first, last = kernel.share(c.mul(rows, record.kv_heads))
        with c.loop(last, first) as unit:
            kv, row = c.div(unit, rows), c.rem(unit, rows)
            begin, end = _blocks(c, record, passed, row)
            with c.loop(end, begin) as block:
                number = c.add(c.mul(unit, most), block)
                one = c.at(record.partial, c.mul(c.mul(number, layout.sharing), layout.result))
                c.call(parts.join, layout.all, one, layout.sharing, record.padded, _flag(c, block, begin))
            c.call(parts.finish, c.arguments[0], layout.all, row, kv)
    c.done()


def _is_split(kernel: Kernel) -> Value:
    c = kernel.code
    units = c.mul(kernel.passed.rows, kernel.record.kv_heads)
    enough = c.compare(units, "<", c.mul(kernel.members, _SPLIT))
    return c.b.and_(enough, c.compare(kernel.members, ">", 1))


def _flag(c: Code, block: Value, begin: Value) -> Value:
    return c.b.zext(c.compare(block, "==", begin), I64)


def _blocks(c: Code, record: Any, passed: Any, row: Value) -> tuple[Value, Value]:
    """[first, end) of the blocks that a row sees."""
    first, length = _seen(c, record, passed, row)
    return c.div(first, BLOCK), c.ceil_div(length, BLOCK)


def _seen(c: Code, record: Any, passed: Any, row: Value) -> tuple[Value, Value]:
    """Positions [first, length) that a row sees: a window hides those that lie `window` or more back."""
    length = c.add(c.index(passed.positions, row), 1)
    windowed = c.larger(c.sub(length, record.window), 0)
    return c.b.select(c.compare(record.window, ">", 0), windowed, c.i(0)), length


def _block(module: ir.Module, machine: Machine, parts: _Parts) -> Any:
    """block(record, pass, scratch, row, kv, block, out): the result of one block for the query heads of a key head."""
    c = Code(module, machine, "attend_block", (POINTER, POINTER, POINTER, I64, I64, I64, POINTER))
    record_, pass_, scratch, row, kv, block, out = c.arguments
    record, passed = Words(c, record_, FIELDS["attend"], 2), Words(c, pass_, PASS, 0)
    layout = _Layout(c, record, scratch)
    sharing, padded = layout.sharing, record.padded
    query = c.add(c.mul(row, record.heads), c.mul(kv, sharing))
    queries = c.at(record.queries, c.mul(c.mul(query, padded), 4))
    first, length = _seen(c, record, passed, row)
    start = c.mul(block, BLOCK)
    low, high = c.larger(c.sub(first, start), 0), c.smaller(c.sub(length, start), BLOCK)
    run = c.index(passed.contiguous, row)
    line = c.mul(c.index(passed.sequences, row), passed.table_stride)
    table = c.at(passed.tables, c.mul(line, 4))
    size = parts.cached.size
    keys_size = c.mul(record.dim, size * BLOCK)
    values_size = c.mul(padded, size * BLOCK)

    def place(number: Value) -> Value:
        return c.add(c.mul(number, record.kv_heads), kv)

    def score(number: Value, to: Value) -> None:
        keys = c.at(record.keys, c.mul(place(number), keys_size))
        _by_heads(
            c, sharing, parts.scores,
            lambda head: (keys, c.at(queries, c.mul(c.mul(head, padded), 4)), c.mul(padded, 4), record.dim,
                          c.at(to, c.mul(head, _LINE))),
        )  # fmt: skip

    def straight() -> None:
        score(c.index(table, block), layout.scores)

    def mixed() -> None:
        _gather(c, record, passed, layout, row, block, high, run, table, place, score, size)

    is_straight = c.compare(run, ">=", c.smaller(length, c.add(start, BLOCK)))
    c.either(is_straight, straight, mixed)
    own = c.at(record.values, c.mul(place(c.index(table, c.b.select(is_straight, block, c.i(0)))), values_size))
    values = c.b.select(is_straight, own, layout.values)
    with c.loop(sharing) as head:
        result = c.at(out, c.mul(head, layout.result))
        c.call(parts.weights, c.at(layout.scores, c.mul(head, _LINE)), low, high, c.at(result, c.mul(padded, 4)))
    _by_heads(
        c, sharing, parts.mixes,
        lambda head: (values, padded, low, high, c.at(layout.scores, c.mul(head, _LINE)),
                      c.at(out, c.mul(head, layout.result)), layout.result),
    )  # fmt: skip
    return c.done()


def _gather(
    c: Code, record: Any, passed: Any, layout: _Layout, row: Value, block: Value, high: Value, run: Value, table: Value,
    place: Any, score: Any, size: int,
) -> None:  # fmt: skip
    """Scores and values of a block whose keys do not lie side by side, in the order of their positions.

    A key's score does not depend on its neighbours, so blocks of the cache are scored whole, one after another.
    """
    branch = c.at(passed.branches, c.mul(c.index(passed.branch_starts, row), 4))
    scored = c.variable(I64, c.i(-1))
    with c.loop(high) as j:
        position = c.add(c.mul(block, BLOCK), j)
        slot = c.variable(I64, c.i(0))

        def in_table(position: Value = position, slot: Value = slot) -> None:
            number = c.index(table, c.div(position, BLOCK))
            c.put(c.add(c.mul(number, BLOCK), c.rem(position, BLOCK)), slot)

        def in_branch(position: Value = position, slot: Value = slot) -> None:
            c.put(c.index(branch, c.sub(position, run)), slot)

        c.either(c.compare(position, "<", run), in_table, in_branch)
        number, offset = c.div(c.get(slot), BLOCK), c.rem(c.get(slot), BLOCK)
        with c.when(c.compare(number, "!=", c.get(scored))):
            score(number, layout.gathered)
            c.put(number, scored)
        with c.loop(layout.sharing) as head:
            at = c.mul(head, _LINE)
            value = c.load(c.at(layout.gathered, at), c.mul(offset, 4), F32)
            c.store(value, c.at(layout.scores, at), c.mul(j, 4))
        stride = c.mul(record.padded, size)
        source = c.at(record.values, c.mul(c.mul(place(number), BLOCK), stride))
        line, to = c.at(source, c.mul(offset, stride)), c.at(layout.values, c.mul(j, stride))
        with c.loop(stride, step=_BYTES) as at:
            c.store(c.load(line, at, I8, _BYTES), to, at)


def _by_heads(c: Code, sharing: Value, functions: dict[int, Any], arguments: Any) -> None:
    """Call functions[n](*arguments(first head)) for heads in groups of up to HEADS."""
    with c.loop(sharing, step=HEADS) as head:
        values = arguments(head)
        cases = {n: calling(c, function, *values) for n, function in functions.items()}
        c.choose(c.smaller(c.sub(sharing, head), HEADS), cases)


def _scores(module: ir.Module, machine: Machine, cached: Cached, heads: int) -> Any:
    """scores(keys, queries, stride, dim, out): out[h][j] = sum over i of queries[h][i] * keys[i][j], i ascending.

    Terms are added by fma, from +0. keys [dim][BLOCK], queries `stride` bytes apart, out [heads][BLOCK].
    """
    c = Code(module, machine, f"scores_{heads}", (POINTER, POINTER, I64, I64, POINTER))
    keys, queries, stride, dim, out = c.arguments
    rows = [c.at(queries, c.mul(stride, h)) for h in range(heads)]
    sums = [[c.variable(_VECTOR, c.vector(F32, 0.0, LANES)) for _ in range(_VECTORS)] for _ in rows]
    with c.loop(dim) as i:
        line = c.at(keys, c.mul(i, cached.size * BLOCK))
        terms = [cached.load(c, line, cached.size * LANES * v, LANES) for v in range(_VECTORS)]
        for row, each in zip(rows, sums, strict=True):
            factor = c.repeated(c.load(row, c.mul(i, 4), F32), LANES)
            for term, total in zip(terms, each, strict=True):
                c.put(c.fma(factor, term, c.get(total)), total)
    for h, each in enumerate(sums):
        for v, total in enumerate(each):
            c.store(c.get(total), out, _LINE * h + 4 * LANES * v)
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
    """mix(values, padded, low, high, weights, out, stride): out[h][i] = sum over j of weights[h][j] * values[j][i].

    j ascends from low to high, terms are added by fma, from +0; out[h] `stride` bytes apart.
    """
    kinds = (POINTER, I64, I64, I64, POINTER, POINTER, I64)
    c = Code(module, machine, f"mix_{heads}", kinds)
    values, padded, low, high, weights, out, stride = c.arguments

    def columns(i: Value, vectors: int) -> None:
        sums = [[c.variable(_VECTOR, c.vector(F32, 0.0, LANES)) for _ in range(vectors)] for _ in range(heads)]
        with c.loop(high, low) as j:
            line = c.at(values, c.mul(c.add(c.mul(j, padded), i), cached.size))
            terms = [cached.load(c, line, cached.size * LANES * v, LANES) for v in range(vectors)]
            for h, each in enumerate(sums):
                factor = c.repeated(c.load(weights, c.add(c.mul(j, 4), _LINE * h), F32), LANES)
                for term, total in zip(terms, each, strict=True):
                    c.put(c.fma(factor, term, c.get(total)), total)
        for h, each in enumerate(sums):
            place = c.at(c.at(out, c.mul(stride, h)), c.mul(i, 4))
            for v, total in enumerate(each):
                c.store(c.get(total), place, 4 * LANES * v)

    whole = c.sub(padded, c.rem(padded, BLOCK))
    with c.loop(whole, step=BLOCK) as i:
        columns(i, _VECTORS)
    with c.loop(padded, whole, LANES) as i:
        columns(i, 1)
    return c.done()


def _join(module: ir.Module, machine: Machine) -> Any:
    """join(all, one, sharing, padded, first): the results so far and one more block's, for each query head.

    With largest scores M and m: top = max(M, m), a = exp(M - top), c = exp(m - top), then sums and values become
    fma(new, c, old * a). The first block is taken as it is.
    """
    c = Code(module, machine, "join", (POINTER, POINTER, I64, I64, I64))
    all_, one, sharing, padded, first = c.arguments
    b, size = c.b, c.mul(c.add(padded, LANES), 4)

    def taken() -> None:
        with c.loop(c.mul(sharing, size), step=4 * LANES) as at:
            c.store(c.load(one, at, F32, LANES), all_, at)

    def joined() -> None:
        with c.loop(sharing) as head:
            old, new = c.at(all_, c.mul(head, size)), c.at(one, c.mul(head, size))
            old_end, new_end = c.at(old, c.mul(padded, 4)), c.at(new, c.mul(padded, 4))
            before, now = c.load(old_end, 0, F32), c.load(new_end, 0, F32)
            top = b.select(b.fcmp_ordered(">", now, before), now, before)
            fade, gain = exponential(c, b.fsub(before, top)), exponential(c, b.fsub(now, top))
            c.store(top, old_end, 0)
            total = c.fma(c.load(new_end, 4, F32), gain, b.fmul(c.load(old_end, 4, F32), fade))
            c.store(total, old_end, 4)
            fades, gains = c.repeated(fade, LANES), c.repeated(gain, LANES)
            with c.loop(padded, step=LANES) as i:
                at = c.mul(i, 4)
                kept = b.fmul(c.load(old, at, F32, LANES), fades)
                c.store(c.fma(c.load(new, at, F32, LANES), gains, kept), old, at)

    c.either(c.compare(first, "!=", 0), taken, joined)
    return c.done()


def _finish(module: ir.Module, machine: Machine) -> Any:
    """finish(record, all, row, kv): mixed[row][head] = values / sum of weights."""
    c = Code(module, machine, "finish", (POINTER, POINTER, I64, I64))
    record_, all_, row, kv = c.arguments
    record = Words(c, record_, FIELDS["attend"], 2)
    sharing = c.div(record.heads, record.kv_heads)
    size = c.mul(c.add(record.padded, LANES), 4)
    with c.loop(sharing) as h:
        result, head = c.at(all_, c.mul(h, size)), c.add(c.mul(kv, sharing), h)
        total = c.load(c.at(result, c.mul(record.padded, 4)), 4, F32)
        line = c.at(record.mixed, c.mul(row, record.mixed_stride))
        out = c.at(line, c.mul(c.mul(head, record.dim), 4))
        whole = c.sub(record.dim, c.rem(record.dim, LANES))
        with c.loop(whole, step=LANES) as i:
            at = c.mul(i, 4)
            c.store(c.b.fdiv(c.load(result, at, F32, LANES), c.repeated(total, LANES)), out, at)
        with c.loop(record.dim, whole) as i:
            at = c.mul(i, 4)
            c.store(c.b.fdiv(c.load(result, at, F32), total), out, at)
    return c.done()

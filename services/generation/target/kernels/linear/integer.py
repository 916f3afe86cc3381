"""Linear layers in int8 (`docs/numerics.md`): rows are rounded to signed bytes, sums of integer products are exact."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from llvmlite import ir

from services.generation.target.kernels.code import F32, I8, I32, I64, POINTER, Changing, Code, Value
from services.generation.target.kernels.linear.byte_products import IntegerProducts
from services.generation.target.kernels.linear.float_tiles import panel_bytes
from services.generation.target.kernels.linear.widening import QuantisedGroup, byte_order
from services.generation.target.kernels.machine import Machine, looks_ahead
from services.generation.target.kernels.records import FIELDS, Kernel, Words
from services.generation.target.kernels.storages import GROUP, PANEL, Storage

ROUNDED = 64  # bytes of a row's rounded group
SCALE, SCALED_SUM, STARTS = 32, 36, (40, 44)
"""Offsets in a rounded group after its bytes: d and d * sum of the bytes, float32; and, for weights with an offset, the
initial sums of products of each half of its inputs, int32. Weights with one scale for the whole group use the first
initial sum, for all inputs."""

_ROUND = 12582912.0  # 1.5 * 2^23: a float32 of this size has no fraction
_ROUND_BITS = 0x4B400000
_SMALLEST = 2.0**-64
_X_BYTES = 3 << 17  # of rounded x that are multiplied with a panel together: most of a second-level cache
_NEAR = 1664  # bytes that are prefetched into the first-level cache, if the CPU looks ahead: two groups of q6_k
_MANY = 4  # rows from which on arithmetic takes longer than reading: with fewer, CPUs may prefetch better by themselves
_LARGE = 10  # rows of the largest tiles, of machines with registers for them
_DWORDS = 8  # of a group's rounded bytes
TOGETHER = 8  # groups that are unpacked together: those that share a header
_LINE = 4 * PANEL
_WORDS = GROUP // 4
AHEAD = 8192  # bytes of packed weights that are prefetched into the second-level cache


def unpacked_bytes(storage: Storage) -> int:
    """Bytes of an unpacked group."""
    return (_WORDS + storage.parts + (not storage.middle)) * _LINE


class UnpackedGroup:
    """The columns [column, column + lanes) of a group that was taken apart in memory, like a `QuantisedGroup`.

    Passes over many rows unpack a group once for all tiles of rows. It has lines of PANEL numbers, one for each column:
    eight of four integers of a byte, in the order of `QuantisedGroup.words`, then the scales and `least`, float32.
    """

    def __init__(self, code: Code, storage: Storage, place: Value, column: int, lanes: int) -> None:
        self._c, self._place, self._column, self._lanes = code, place, column, lanes
        self.scales = [self._line(_WORDS + part, F32) for part in range(storage.parts)]
        self.least = None if storage.middle else self._line(_WORDS + storage.parts, F32)

    def word(self, number: int) -> Value:
        return self._line(number, I32)

    def _line(self, number: int, kind: Any) -> Value:
        return self._c.load(self._place, _LINE * number + 4 * self._column, kind, self._lanes, 4)


def unpack(module: ir.Module, machine: Machine, storage: Storage) -> Any:
    """unpack(record, panel, first, groups, to): groups [first, first + groups) of a panel; `first` is a multiple of
    TOGETHER.
    """
    c = Code(module, machine, "unpack", (POINTER, I64, I64, I64, POINTER))
    record_, panel, first, groups, to = c.arguments
    record = Words(c, record_, FIELDS["linear"], 2)
    place = c.at(record.weights, c.mul(panel, panel_bytes(c, record, storage)))
    header = c.at(place, c.mul(c.div(first, storage.groups), storage.panel(storage.groups * GROUP)))
    with c.loop(groups) as number:
        group = c.at(header, c.add(c.mul(number, storage.group), storage.header))
        for at in range(0, storage.group, 64):
            c.prefetch(group, AHEAD + at, locality=2)
        out = c.at(to, c.mul(number, unpacked_bytes(storage)))
        for column in range(0, PANEL, machine.lanes):
            found = QuantisedGroup(c, storage, header, group, column, machine.lanes)
            lines = [*found.words, *found.scales, *(() if found.least is None else (found.least,))]
            for line, value in enumerate(lines):
                c.store(value, out, _LINE * line + 4 * column)
    return c.done()


def round_rows(c: Code, record: Any, storage: Storage, x: Value, rows: Value, to: Value) -> None:
    """Round x to [group][row][ROUNDED bytes], the bytes in the order of `QuantisedGroup.words`."""
    with c.loop(rows) as row:
        line = c.at(x, c.mul(row, record.x_stride))
        with c.loop(record.groups) as group:
            place = c.at(to, c.mul(c.add(c.mul(group, rows), row), ROUNDED))
            _round_group(c, storage, c.at(line, c.mul(group, 4 * GROUP)), place)


def _round_group(c: Code, storage: Storage, x: Value, place: Value) -> None:
    b, wide = c.b, ir.VectorType(I32, GROUP)
    values = c.load(x, 0, F32, GROUP, 4)
    magnitudes = b.and_(b.bitcast(values, wide), c.vector(I32, 0x7FFFFFFF, GROUP))
    scale, inverse = scale_of(c, magnitudes)
    whole = to_bytes(c, values, inverse)
    order = ir.Constant(ir.VectorType(I32, GROUP), byte_order(storage))
    bytes_ = b.trunc(whole, ir.VectorType(I8, GROUP))
    c.store(b.shuffle_vector(bytes_, bytes_, order), place, 0)
    half = GROUP // 2
    sums = []
    for first in (0, half):
        some = ir.Constant(ir.VectorType(I32, half), list(range(first, first + half)))
        kind = ir.VectorType(I32, half)
        reduce = c.external(f"llvm.vector.reduce.add.v{half}i32", I32, (kind,))
        sums.append(c.call(reduce, b.shuffle_vector(whole, whole, some)))
    total = b.add(*sums)
    c.store(scale, place, SCALE)
    c.store(b.fmul(scale, b.sitofp(total, F32)), place, SCALED_SUM)
    middle = ir.Constant(I32, -_middle(c.machine, storage))
    parts = sums if storage.parts > 1 else (total, ir.Constant(I32, 0))
    for part, at in zip(parts, STARTS, strict=True):
        c.store(b.mul(part, middle), place, at)


def scale_of(c: Code, magnitudes: Value) -> tuple[Value, Value]:
    """The scale of rounding, largest / 127, and its inverse, for the bits of magnitudes, a vector of int32.

    Bits of magnitudes compare as integers, with NaN above all numbers.
    """
    b, kind = c.b, magnitudes.type
    reduce = c.external(f"llvm.vector.reduce.umax.v{kind.count}i32", I32, (kind,))
    largest = b.bitcast(c.call(reduce, magnitudes), F32)
    nothing = b.fcmp_ordered("<", largest, c.real(_SMALLEST))
    scale = b.fadd(b.fdiv(largest, c.real(127.0)), b.fmul(largest, c.real(0.0)))
    inverse = b.fdiv(c.real(127.0), largest)
    return b.select(nothing, c.real(0.0), scale), b.select(nothing, c.real(0.0), inverse)


def to_bytes(c: Code, values: Value, inverse: Value) -> Value:
    """A vector of float32 rounded to whole numbers from -127 to 127, int32."""
    lanes = values.type.count
    raised = c.fma(values, c.repeated(inverse, lanes), c.vector(F32, _ROUND, lanes))
    return c.b.sub(c.b.bitcast(raised, ir.VectorType(I32, lanes)), c.vector(I32, _ROUND_BITS, lanes))


def _middle(machine: Machine, storage: Storage) -> int:
    """The offset of weights when `IntegerProducts` multiplies them."""
    return 0 if machine.products == "sdot" and storage.bits == 8 else storage.middle


def _vectors(machine: Machine) -> int:
    """Vectors of columns whose sums are in registers at the same time, for each row of a tile.

    Intel's Ice Lake multiplies two vectors of 64 bytes a cycle and loads about one, so that a row's bytes are loaded
    once for two vectors. AMD's Zen 4 multiplies one and loads two: a product reads them from memory, and more registers
    are left for rows.
    """
    return 2 if machine.products == "vnni" and machine.lanes == 16 and not looks_ahead() else 1


def _most_rows(machine: Machine) -> int:
    """The most rows of a tile, which are multiplied with a group's weights in registers."""
    if machine.products == "plain":
        return min(machine.lanes, 4)
    if machine.registers < 32:
        return 6
    return _LARGE if machine.products == "vnni" and _vectors(machine) == 1 else 8


def build(module: ir.Module, machine: Machine, storage: Storage) -> None:
    """Add the kernel `linear` to a module; `storage` is a quantised one."""
    most = _most_rows(machine)
    tiles = {rows: _tile(module, machine, storage, rows) for rows in range(1, most + 1)}
    # Values of more than four bits behind a shared header are taken apart once for all tiles of rows. Others take few
    # operations a word, which cost less than sums of y that are stored and loaded for each block of groups. In tiles of
    # _LARGE rows, products hide these operations.
    apart = storage.header and storage.upper and most < _LARGE
    many = _many(module, machine, storage, most) if apart else _many_packed(module, machine, storage, tiles, most)
    kernel = Kernel(module, machine, "linear")
    c, record = kernel.code, kernel.record
    first, last = kernel.panels()
    rows, x = kernel.rows(), kernel.scratch()
    together = c.mul(c.larger(c.div(c.div(c.i(_X_BYTES), c.mul(record.groups, ROUNDED)), most), 1), most)
    with c.loop(rows, step=together) as begin:
        some = c.smaller(c.sub(rows, begin), together)
        round_rows(c, record, storage, c.at(record.x, c.mul(begin, record.x_stride)), some, x)
        y = c.at(record.y, c.mul(begin, record.y_stride))
        few = (c.arguments[0], x, c.mul(some, ROUNDED), y, first, last)
        c.choose(some, {n: partial(c.call, tile, *few) for n, tile in tiles.items()})
        with c.when(c.compare(some, ">", most)):
            c.call(many, c.arguments[0], x, some, y, first, last)
    c.done()


def _tile(module: ir.Module, machine: Machine, storage: Storage, rows: int) -> Any:
    """tile(record, x, x_stride, y, first, last): panels [first, last) for `rows` rows.

    x is rounded; its rows are ROUNDED bytes apart, its groups x_stride bytes.
    """
    c = Code(module, machine, f"tile_{rows}", (POINTER, POINTER, I64, POINTER, I64, I64))
    record_, x, x_stride, y, first, last = c.arguments
    record = Words(c, record_, FIELDS["linear"], 2)
    lanes, size = machine.lanes, panel_bytes(c, record, storage)
    columns = range(0, PANEL, lanes)
    with c.loop(last, first) as panel:
        place = c.at(record.weights, c.mul(panel, size))
        zero = c.vector(F32, 0.0, lanes)
        sums = [[c.variable(zero) for _ in columns] for _ in range(rows)]

        def group(header: Value, start: Value, number: Value) -> None:
            near = c.at(x, c.mul(number, x_stride))
            for at in range(0, storage.group, 64) if rows >= _MANY or not looks_ahead() else ():
                c.prefetch(start, AHEAD + at, locality=2)
                if looks_ahead():
                    c.prefetch(start, _NEAR + at)
            _add_group(c, storage, lambda column: QuantisedGroup(c, storage, header, start, column, lanes), near, sums)

        if storage.header:
            shared = storage.header + storage.groups * storage.group
            with c.loop(c.div(record.groups, storage.groups)) as block:
                header = c.at(place, c.mul(block, shared))
                with c.loop(storage.groups) as part:
                    start = c.at(header, c.add(c.mul(part, storage.group), storage.header))
                    group(header, start, c.add(c.mul(block, storage.groups), part))
        else:
            with c.loop(record.groups) as number:
                group(place, c.at(place, c.mul(number, storage.group)), number)
        for r in range(rows):
            out = c.at(y, c.add(c.mul(record.y_stride, r), c.mul(panel, 4 * PANEL)))
            for column, total in zip(columns, sums[r], strict=True):
                _add_bias(c, record, panel, column, c.get(total), out)
    return c.done()


def _many_packed(module: ir.Module, machine: Machine, storage: Storage, tiles: Mapping[int, Any], most: int) -> Any:
    """many(record, x, rows, y, first, last): panels [first, last) for more than `most` rows, in nearly equal tiles."""
    c = Code(module, machine, "many", (POINTER, POINTER, I64, POINTER, I64, I64))
    record_, x, rows, y, first, last = c.arguments
    record = Words(c, record_, FIELDS["linear"], 2)
    count, stride = c.ceil_div(rows, most), c.mul(rows, ROUNDED)
    with c.loop(last, first) as panel, c.loop(count) as number:
        row, end = (c.div(c.mul(rows, c.add(number, more)), count) for more in (0, 1))
        near, out = c.at(x, c.mul(row, ROUNDED)), c.at(y, c.mul(row, record.y_stride))
        arguments = (record_, near, stride, out, panel, c.add(panel, c.i(1)))
        c.choose(c.sub(end, row), {n: partial(c.call, tile, *arguments) for n, tile in tiles.items()})
    return c.done()


def _many(module: ir.Module, machine: Machine, storage: Storage, most: int) -> Any:
    """many(record, x, rows, y, first, last): panels [first, last) for more than `most` rows, in nearly equal tiles.

    y has the sums of the blocks so far.
    """
    tiles = {rows: _block_tile(module, machine, storage, rows) for rows in range((most + 1) // 2, most + 1)}
    unpacking = unpack(module, machine, storage)
    c = Code(module, machine, "many", (POINTER, POINTER, I64, POINTER, I64, I64))
    record_, x, rows, y, first, last = c.arguments
    record = Words(c, record_, FIELDS["linear"], 2)
    lanes, count, stride = machine.lanes, c.ceil_div(rows, most), c.mul(rows, ROUNDED)
    weights = c.stack_alloc(TOGETHER * unpacked_bytes(storage))
    with c.loop(last, first) as panel:
        place = c.at(y, c.mul(panel, 4 * PANEL))
        with c.loop(rows) as row:
            for column in range(0, PANEL, lanes):
                c.store(c.vector(F32, 0.0, lanes), c.at(place, c.mul(row, record.y_stride)), 4 * column)
        with c.loop(record.groups, step=TOGETHER) as group:
            groups, near = c.smaller(c.sub(record.groups, group), TOGETHER), c.at(x, c.mul(group, stride))
            c.call(unpacking, record_, panel, group, groups, weights)
            with c.loop(count) as number:
                row, end = (c.div(c.mul(rows, c.add(number, more)), count) for more in (0, 1))
                out = c.at(place, c.mul(row, record.y_stride))
                arguments = (c.at(near, c.mul(row, ROUNDED)), stride, out, record.y_stride, weights, groups)
                c.choose(c.sub(end, row), {n: partial(c.call, tile, *arguments) for n, tile in tiles.items()})
        with c.loop(rows) as row:
            out = c.at(place, c.mul(row, record.y_stride))
            for column in range(0, PANEL, lanes):
                _add_bias(c, record, panel, column, c.load(out, 4 * column, F32, lanes), out)
    return c.done()


def _block_tile(module: ir.Module, machine: Machine, storage: Storage, rows: int) -> Any:
    """block_tile(x, x_stride, y, y_stride, weights, groups): add the products of unpacked groups to a panel of y."""
    c = Code(module, machine, f"block_tile_{rows}", (POINTER, I64, POINTER, I64, POINTER, I64))
    x, x_stride, y, y_stride, weights, groups = c.arguments
    lanes, outs = machine.lanes, [c.at(y, c.mul(y_stride, r)) for r in range(rows)]
    columns = range(0, PANEL, lanes)
    before = [[c.load(out, 4 * column, F32, lanes) for column in columns] for out in outs]
    sums = [[c.variable(value) for value in each] for each in before]
    with c.loop(groups) as number:
        near, place = c.at(x, c.mul(number, x_stride)), c.at(weights, c.mul(number, unpacked_bytes(storage)))
        _add_group(c, storage, lambda column: UnpackedGroup(c, storage, place, column, lanes), near, sums)
    for out, totals in zip(outs, sums, strict=True):
        for column, total in zip(columns, totals, strict=True):
            c.store(c.get(total), out, 4 * column)
    return c.done()


def _add_bias(c: Code, record: Any, panel: Value, column: int, total: Value, out: Value) -> None:
    bias = c.load(record.bias, c.add(c.mul(panel, 4 * PANEL), 4 * column), F32, c.machine.lanes)
    c.store(c.b.fadd(total, bias), out, 4 * column)


def _add_group(
    c: Code, storage: Storage, columns_from: Callable[[int], QuantisedGroup | UnpackedGroup], near: Value,
    sums: Sequence[Sequence[Value]],
) -> None:  # fmt: skip
    """Add a group to sums[row][vector of columns]; rows of x are ROUNDED bytes apart from `near` on."""
    lanes, together = c.machine.lanes, _vectors(c.machine)
    rows = [c.at(near, ROUNDED * r) for r in range(len(sums))]
    for first in range(0, PANEL // lanes, together):
        some = [columns_from(lanes * v) for v in range(first, first + together)]
        with c.straight([each[first : first + together] for each in sums]) as totals:
            _add_columns(c, storage, some, rows, totals)


def _add_columns(
    c: Code, storage: Storage, weights: Sequence[QuantisedGroup | UnpackedGroup], rows: Sequence[Value],
    totals: Sequence[Sequence[Changing]],
) -> None:  # fmt: skip
    """Add some columns to totals[row][v]: scale * d * sum of products, then least * (d * sum of bytes)."""
    lanes = c.machine.lanes
    vector = ir.VectorType(F32, lanes) if lanes > 1 else F32
    products = IntegerProducts(c, [each.word for each in weights], storage.bits, lanes)
    share = _DWORDS // storage.parts
    for part in range(storage.parts):
        sums = []
        for x in rows:
            start = c.repeated(c.load(x, STARTS[part], I32), lanes) if _middle(c.machine, storage) else None
            begin = c.vector(I32, 0, lanes) if start is None else start
            sums.append([Changing(begin) for _ in weights])
        products.add(rows, range(part * share, (part + 1) * share), sums)
        for x, sums_, totals_ in zip(rows, sums, totals, strict=True):
            scale = c.repeated(c.load(x, SCALE, F32), lanes)
            for each, sum_, total in zip(weights, sums_, totals_, strict=True):
                scaled = c.b.fmul(each.scales[part], scale)
                c.put(c.fma(scaled, c.b.sitofp(c.get(sum_), vector), c.get(total)), total)
    if weights[0].least is not None:
        for x, totals_ in zip(rows, totals, strict=True):
            scaled_sum = c.repeated(c.load(x, SCALED_SUM, F32), lanes)
            for each, total in zip(weights, totals_, strict=True):
                c.put(c.fma(each.least, scaled_sum, c.get(total)), total)
    c.keep_order([total for each in totals for total in each])

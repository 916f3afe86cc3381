"""Linear layers of int8 (`docs/numerics.md`): rows rounded to signed bytes, and exact sums of integer products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from services.generation.target.kernels.code import F32, I8, I16, I32, I64, POINTER, Code, Value
from services.generation.target.kernels.linear.float_tiles import panel_bytes
from services.generation.target.kernels.linear.widening import BITS, MIDDLE, QuantisedGroup, byte_order
from services.generation.target.kernels.machine import Machine
from services.generation.target.kernels.records import FIELDS, Kernel, Words
from services.generation.target.kernels.storages import GROUP, PANEL, Storage

ROUNDED = 64  # bytes of a row's rounded group
SCALE, SCALED_SUM, STARTS = 32, 36, (40, 44)
"""Where a rounded group has, after its bytes: d and d * sum of the bytes, float32; for each half of its inputs what
the sum of products begins with, int32, where integers of weights have a middle. Weights with one scale for all of the
group begin with the first of the two, which then stands for all inputs."""

_ROUND = 12582912.0  # 1.5 * 2^23: a float32 of this size has no fraction
_ROUND_BITS = 0x4B400000
_SMALLEST = 2.0**-64


def round_rows(c: Code, record: Any, storage: Storage, x: Value, rows: Value, to: Value) -> None:
    """x as [group][row][ROUNDED bytes], the bytes in the order of `QuantisedGroup.words`."""
    with c.loop(rows) as row:
        line = c.at(x, c.mul(row, record.x_stride))
        with c.loop(record.groups) as group:
            place = c.at(to, c.mul(c.add(c.mul(group, rows), row), ROUNDED))
            _round_group(c, storage, c.at(line, c.mul(group, 4 * GROUP)), place)


def _round_group(c: Code, storage: Storage, x: Value, place: Value) -> None:
    b, wide = c.b, ir.VectorType(I32, GROUP)
    values = c.load(x, 0, F32, GROUP, 4)
    magnitudes = b.and_(b.bitcast(values, wide), c.vector(I32, 0x7FFFFFFF, GROUP))
    # Magnitudes compare as integers do, and what is no number is above all others.
    largest = b.bitcast(c.call(c.external(f"llvm.vector.reduce.umax.v{GROUP}i32", I32, (wide,)), magnitudes), F32)
    nothing = b.fcmp_ordered("<", largest, c.real(_SMALLEST))
    scale = b.fadd(b.fdiv(largest, c.real(127.0)), b.fmul(largest, c.real(0.0)))
    scale = b.select(nothing, c.real(0.0), scale)
    inverse = b.select(nothing, c.real(0.0), b.fdiv(c.real(127.0), largest))
    raised = c.fma(values, c.repeated(inverse, GROUP), c.vector(F32, _ROUND, GROUP))
    whole = b.sub(b.bitcast(raised, wide), c.vector(I32, _ROUND_BITS, GROUP))
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
    parts = sums if storage.name == "q6_k" else (total, ir.Constant(I32, 0))
    for part, at in zip(parts, STARTS, strict=True):
        c.store(b.mul(part, middle), place, at)


def _middle(machine: Machine, storage: Storage) -> int:
    """What weights are too large by, as `IntegerProducts` multiplies them."""
    return 0 if machine.products == "sdot" and BITS[storage.name] == 8 else MIDDLE.get(storage.name, 0)


_LARGEST_PAIRS = 32767 // (2 * 127)  # the largest weight whose products with two x fit an int16 together


class IntegerProducts:
    """The weights of some columns and 32 inputs, ready to be multiplied with any number of rows.

    All ways give the same integers: none of them saturates. Two products of a weight up to w and |x| up to 127 sum up
    to 254 w in an int16, so 4-bit weights are added up eight times, 5-bit ones four times, 6-bit ones twice before
    they are widened; 8-bit weights are taken apart into two halves of 4 bits. Where both
    bytes are signed ("sdot"), 8-bit weights have their middle taken away here, else it is what sums begin with.
    """

    def __init__(self, code: Code, words: Sequence[Value], bits: int, lanes: int) -> None:
        """`words`: eight vectors [lanes] of int32, each four bytes of so many bits."""
        self._c, self._lanes = code, lanes
        self._way = code.machine.products
        self._sets = [(list(words), 1, bits)]
        self._weights: dict[tuple[int, int], Value] = {}
        if self._way == "sdot" and bits == 8:
            middle = self._int(0x80808080)
            self._sets = [([code.b.xor(word, middle) for word in words], 1, bits)]
        if self._way == "pairs" and bits == 8:
            four, mask = self._int(4), self._int(0x0F0F0F0F)
            low = [code.b.and_(word, mask) for word in words]
            high = [code.b.and_(code.b.lshr(word, four), mask) for word in words]
            self._sets = [(low, 1, 4), (high, 16, 4)]

    def sum(self, x: Value, first: int, last: int, start: Value) -> Value:
        """start + the products of words [first, last) with as many times four bytes at x, int32 [lanes]."""
        if self._way in _FOURS:
            return self._by_fours(x, range(first, last), start)
        if self._way == "pairs":
            for words, factor, bits in self._sets:
                start = self._by_pairs(words, factor, bits, x, range(first, last), start)
            return start
        return self._one_by_one(x, range(first, last), start)

    def _by_fours(self, x: Value, places: range, total: Value) -> Value:
        c, lanes = self._c, self._lanes
        words = self._sets[0][0]
        kind, wide = ir.VectorType(I32, lanes), ir.VectorType(I8, 4 * lanes)
        function = c.external(_FOURS[self._way][lanes], kind, (kind, wide, wide))
        for i in places:
            total = c.call(function, total, c.b.bitcast(words[i], wide), c.b.bitcast(self._four(x, i), wide))
        return total

    def _by_pairs(self, words: Sequence[Value], factor: int, bits: int, x: Value, places: range, total: Value) -> Value:
        c, lanes = self._c, self._lanes
        most = _LARGEST_PAIRS // ((1 << bits) - 1)  # sums of two products that fit an int16 together
        bytes_, halves, whole = (ir.VectorType(k, lanes * n) for k, n in ((I8, 4), (I16, 2), (I32, 1)))
        multiply, widen = _PAIRS[lanes]
        times = c.external(multiply, halves, (bytes_, bytes_))
        joined = c.external(widen, whole, (halves, halves))
        factors = c.vector(I16, factor, 2 * lanes)
        for begin in range(places.start, places.stop, most):
            some = range(begin, min(begin + most, places.stop))
            sums = [c.call(times, c.b.bitcast(words[i], bytes_), c.b.bitcast(self._four(x, i), bytes_)) for i in some]
            pairs = sums[0]
            for more in sums[1:]:
                pairs = c.b.add(pairs, more)
            total = c.b.add(total, c.call(joined, pairs, factors))
        return total

    def _one_by_one(self, x: Value, places: range, total: Value) -> Value:
        c = self._c
        for i in places:
            for byte in range(4):
                weight = self._weight(i, byte)
                one = c.b.sext(c.load(x, 4 * i + byte, I8), I32)
                total = c.b.add(total, c.b.mul(weight, c.repeated(one, self._lanes)))
        return total

    def _weight(self, i: int, byte: int) -> Value:
        """A byte of every lane, taken out once for all rows: LLVM would find that too, but only after a while."""
        if (i, byte) not in self._weights:
            word = self._sets[0][0][i]
            self._weights[i, byte] = self._c.b.and_(self._c.b.lshr(word, self._int(8 * byte)), self._int(255))
        return self._weights[i, byte]

    def _four(self, x: Value, number: int) -> Value:
        """Four bytes of x in every lane."""
        return self._c.repeated(self._c.load(x, 4 * number, I32), self._lanes)

    def _int(self, value: int) -> Value:
        return self._c.vector(I32, value, self._lanes)


_FOURS = {
    "vnni": {8: "llvm.x86.avx512.vpdpbusd.256", 16: "llvm.x86.avx512.vpdpbusd.512"},  # unsigned weights, signed x
    "sdot": {4: "llvm.aarch64.neon.sdot.v4i32.v16i8"},  # both signed
}
"""By machine and lanes: products of bytes summed by fours and added."""

_PAIRS = {
    8: ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
    16: ("llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"),
}
"""By lanes: products of bytes summed by twos, products of int16 summed by twos."""


_TILE = 8  # rows, at most, that a group's weights are multiplied with, once they are in registers
_X_BYTES = 3 << 17  # of rounded x that go through the panels together: most of a second-level cache
_NOWHERE = 1024  # bytes at the end of the scratch for rows that nobody asked for
_AHEAD = 4096  # bytes of weights that are fetched ahead
_DWORDS = 8  # of a group's rounded bytes


def _tiles(machine: Machine) -> tuple[int, ...]:
    """Rows that tiles are compiled for, the most last."""
    return (1, 2, 3, 4, 6, _TILE) if machine.lanes > 1 else (1,)


def build(module: ir.Module, machine: Machine, storage: Storage) -> None:
    """Add the kernel `linear` to a module; `storage` is a quantised one."""
    tiles = {rows: _tile(module, machine, storage, rows) for rows in _tiles(machine)}
    most = max(tiles)
    kernel = Kernel(module, machine, "linear")
    c, record = kernel.code, kernel.record
    first, last = kernel.share(c.div(record.panels, record.unit))
    first, last = c.mul(first, record.unit), c.mul(last, record.unit)
    rows, x = kernel.rows(), kernel.scratch()
    nowhere = c.at(x, c.sub(record.scratch_size, _NOWHERE))
    together = c.mul(c.larger(c.div(c.div(c.i(_X_BYTES), c.mul(record.groups, ROUNDED)), most), 1), most)
    with c.loop(rows, step=together) as begin:
        some = c.smaller(c.sub(rows, begin), together)
        round_rows(c, record, storage, c.at(record.x, c.mul(begin, record.x_stride)), some, x)
        y = c.at(record.y, c.mul(begin, record.y_stride))
        stride = c.mul(some, ROUNDED)

        def run(
            row: Value | int, first: Value, last: Value, y: Value = y, stride: Value = stride, some: Value = some
        ) -> None:
            arguments = (
                c.arguments[0], c.at(x, c.mul(row, ROUNDED)), stride, c.at(y, c.mul(row, record.y_stride)), nowhere,
            )  # fmt: skip
            count = c.smaller(c.sub(some, row), most)

            def case(size: int) -> Callable[[], None]:
                return lambda: c.call(tiles[size], *arguments, count, first, last) and None

            c.choose(count, {n: case(next(size for size in tiles if size >= n)) for n in range(1, most + 1)})

        def few() -> None:
            run(0, first, last)

        def many(some: Value = some) -> None:
            with c.loop(last, first) as panel, c.loop(some, step=most) as row:
                run(row, panel, c.add(panel, 1))

        c.either(c.compare(some, "<=", most), few, many)
    c.done()


def _tile(module: ir.Module, machine: Machine, storage: Storage, rows: int) -> Any:
    """tile(record, x, x_stride, y, nowhere, count, first, last): panels [first, last) for `count` of so many rows.

    x is rounded; a row is ROUNDED bytes behind the one before it, a group x_stride bytes.
    """
    c = Code(module, machine, f"tile_{rows}", (POINTER, POINTER, I64, POINTER, POINTER, I64, I64, I64))
    record_, x, x_stride, y, nowhere, count, first, last = c.arguments
    record = Words(c, record_, FIELDS["linear"], 2)
    lanes, size = machine.lanes, panel_bytes(c, record, storage)
    vector = ir.VectorType(F32, lanes) if lanes > 1 else F32
    columns = range(0, PANEL, lanes)
    with c.loop(last, first) as panel:
        place = c.at(record.weights, c.mul(panel, size))
        sums = [[c.variable(vector, c.vector(F32, 0.0, lanes)) for _ in range(rows)] for _ in columns]

        def group(header: Value, start: Value, number: Value, sums: list[list[Value]] = sums) -> None:
            near = c.at(x, c.mul(number, x_stride))
            for at in range(0, storage.group, 64):
                c.prefetch(start, _AHEAD + at)
            for column, totals in zip(columns, sums, strict=True):
                weights = QuantisedGroup(c, storage, header, start, column, lanes)
                _add_group(c, storage, weights, [c.at(near, ROUNDED * r) for r in range(rows)], totals)

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
            out = c.b.select(c.compare(count, ">", r), out, nowhere) if r else out
            for column, totals in zip(columns, sums, strict=True):
                bias = c.load(record.bias, c.add(c.mul(panel, 4 * PANEL), 4 * column), F32, lanes)
                c.store(c.b.fadd(c.get(totals[r]), bias), out, 4 * column)
    return c.done()


def _add_group(c: Code, storage: Storage, weights: QuantisedGroup, xs: list[Value], totals: list[Value]) -> None:
    """Each row's total gains a group: scale * d * sum of products, then least * (d * sum of bytes)."""
    lanes = c.machine.lanes
    vector = ir.VectorType(F32, lanes) if lanes > 1 else F32
    products = IntegerProducts(c, weights.words, BITS[storage.name], lanes)
    share = _DWORDS // len(weights.scales)
    for x, total in zip(xs, totals, strict=True):
        d = c.repeated(c.load(x, SCALE, F32), lanes)
        value = c.get(total)
        for part, scale in enumerate(weights.scales):
            start = c.vector(I32, 0, lanes)
            if _middle(c.machine, storage):
                start = c.repeated(c.load(x, STARTS[part], I32), lanes)
            whole = products.sum(x, part * share, (part + 1) * share, start)
            value = c.fma(c.b.fmul(scale, d), c.b.sitofp(whole, vector), value)
        if weights.least is not None:
            value = c.fma(weights.least, c.repeated(c.load(x, SCALED_SUM, F32), lanes), value)
        c.put(value, total)
        c.keep_order([total])

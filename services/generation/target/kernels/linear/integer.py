"""Linear layers in int8 (`docs/numerics.md`): rows are rounded to signed bytes, sums of integer products are exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from llvmlite import ir

from services.generation.target.kernels.code import F32, I8, I16, I32, I64, POINTER, Code, Value, calling
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
_LARGEST_PAIRS = 32767 // (2 * 127)  # the largest weight for which two products with x fit an int16
_FOURS = {
    "vnni": {8: "llvm.x86.avx512.vpdpbusd.256", 16: "llvm.x86.avx512.vpdpbusd.512"},  # unsigned weights, signed x
    "sdot": {4: "llvm.aarch64.neon.sdot.v4i32.v16i8"},  # both signed
}
"""Instructions that add sums of four products of bytes, by machine and lanes."""
_PAIRS = {
    8: ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
    16: ("llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"),
}
"""Instructions for sums of two products of bytes, and of two products of int16, by lanes."""
_X_BYTES = 3 << 17  # of rounded x that are multiplied with a panel together: most of a second-level cache
_AHEAD = 8192  # bytes of weights that are prefetched into the second-level cache
_NEAR = 1664  # bytes that are prefetched into the first-level cache, if the CPU looks ahead: two groups of q6_k
_MANY = 4  # rows from which on arithmetic takes longer than reading: with fewer, CPUs may prefetch better by themselves
_DWORDS = 8  # of a group's rounded bytes


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
    parts = sums if storage.name == "q6_k" else (total, ir.Constant(I32, 0))
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


@dataclass(frozen=True, slots=True)
class _Part:
    """Factors of `bits` bits; sums of their products are multiplied by `times`."""

    word: Callable[[int], Value]
    bits: int
    times: int = 1


class IntegerProducts:
    """The weights of some columns and 32 inputs, to be multiplied with the rows of a tile.

    All instruction sets give the same integers, without saturation. Two products of a weight up to w and |x| up to 127
    sum up to 254 w in an int16: eight sums of 4-bit weights are added before they are widened, four of 5-bit weights
    and two of 6-bit weights; 8-bit weights are split into two halves of 4 bits. If both bytes are signed ("sdot"), the
    offset of 8-bit weights is subtracted here; otherwise it is part of the initial sums.

    Each four bytes of weights are multiplied with all rows before the next four, so that adjacent instructions belong
    to different rows and do not wait for each other. A row's bytes are loaded once for all vectors of 64 bytes.
    """

    def __init__(self, code: Code, words: Sequence[Callable[[int], Value]], bits: int, lanes: int) -> None:
        """`words[v](i)`, i < 8: a vector [lanes] of int32, each four bytes of `bits` bits, for vector v of columns."""
        self._c, self._lanes = code, lanes
        self._way = code.machine.products
        self._parts = [self._apart(word, bits) for word in words]

    def _apart(self, word: Callable[[int], Value], bits: int) -> list[_Part]:
        """The factors of a vector of columns on this machine."""
        b = self._c.b
        if self._way == "sdot" and bits == 8:
            return [_Part(lambda i: b.xor(word(i), self._int(0x80808080)), bits)]
        if self._way == "pairs" and bits == 8:
            four, mask = self._int(4), self._int(0x0F0F0F0F)
            lower = _Part(lambda i: b.and_(word(i), mask), 4)
            return [lower, _Part(lambda i: b.and_(b.lshr(word(i), four), mask), 4, times=16)]
        return [_Part(word, bits)]

    def add(self, rows: Sequence[Value], places: range, totals: Sequence[Sequence[Value]]) -> None:
        """Add products of words, four bytes each, and x to totals[row][v], variables of int32 [lanes]."""
        paired = len(rows) // 2 * 2 if self._c.machine.matrices == "smmla" else 0
        if self._way in _FOURS and paired < len(rows):
            self._by_fours(rows[paired:], places, totals[paired:])
        for v, parts in enumerate(self._parts):
            of_vector = [each[v] for each in totals]
            if paired:
                self._by_matrices(parts[0], rows[:paired], places, of_vector[:paired])
            elif self._way == "pairs":
                self._by_pairs(parts, rows, places, of_vector)
            elif self._way == "plain":
                self._one_by_one(parts[0], rows, places, of_vector)

    def _by_fours(self, rows: Sequence[Value], places: range, totals: Sequence[Sequence[Value]]) -> None:
        c, lanes = self._c, self._lanes
        kind, wide = ir.VectorType(I32, lanes), ir.VectorType(I8, 4 * lanes)
        function = c.external(_FOURS[self._way][lanes], kind, (kind, wide, wide))
        together = len(self._parts) if lanes == 16 else 1  # words of all vectors do not fit fewer registers
        for i, first in product(places, range(0, len(self._parts), together)):
            some = slice(first, first + together)
            words = [c.b.bitcast(parts[0].word(i), wide) for parts in self._parts[some]]
            for x, each in zip(rows, totals, strict=True):
                four = c.b.bitcast(self._four(x, i), wide)
                for word, total in zip(words, each[some], strict=True):
                    c.put(c.call(function, c.get(total), word, four), total)
            c.keep_order([total for each in totals for total in each[some]])

    def _by_matrices(self, part: _Part, rows: Sequence[Value], places: range, totals: Sequence[Value]) -> None:
        """Add products of eight bytes of two rows and two columns: [2][2] sums."""
        c, b = self._c, self._c.b
        kind, bytes_ = ir.VectorType(I32, 4), ir.VectorType(I8, 16)
        function = c.external("llvm.aarch64.neon.smmla.v4i32.v16i8", kind, (kind, bytes_, bytes_))
        pairs = [rows[r : r + 2] for r in range(0, len(rows), 2)]
        sums = [[c.variable(kind, c.vector(I32, 0, 4)) for _ in range(2)] for _ in pairs]
        for i in places[::2]:
            one, other = (part.word(k) for k in (i, i + 1))
            columns = [b.bitcast(_picked(c, one, other, mask), bytes_) for mask in ([0, 4, 1, 5], [2, 6, 3, 7])]
            for pair, each in zip(pairs, sums, strict=True):
                upper, lower = (c.repeated(c.load(row, 4 * i, I64), 2) for row in pair)
                x = b.bitcast(_picked(c, upper, lower, [0, 2]), bytes_)
                for column, sum_ in zip(columns, each, strict=True):
                    c.put(c.call(function, c.get(sum_), x, column), sum_)
            c.keep_order([sum_ for each in sums for sum_ in each])
        for row, total in enumerate(totals):
            left, right = (c.get(sum_) for sum_ in sums[row // 2])
            mask = [0, 1, 4, 5] if row % 2 == 0 else [2, 3, 6, 7]
            c.put(b.add(c.get(total), _picked(c, left, right, mask)), total)

    def _by_pairs(self, parts: Sequence[_Part], rows: Sequence[Value], places: range, totals: Sequence[Value]) -> None:
        c, lanes = self._c, self._lanes
        most = _LARGEST_PAIRS // ((1 << parts[0].bits) - 1)  # sums of two products that fit an int16 together
        bytes_, halves, whole = (ir.VectorType(k, lanes * n) for k, n in ((I8, 4), (I16, 2), (I32, 1)))
        multiply, widen = _PAIRS[lanes]
        times = c.external(multiply, halves, (bytes_, bytes_))
        joined = c.external(widen, whole, (halves, halves))
        for begin in range(places.start, places.stop, most):
            pairs = [[c.variable(halves, c.vector(I16, 0, 2 * lanes)) for _ in parts] for _ in rows]
            for i in range(begin, min(begin + most, places.stop)):
                words = [c.b.bitcast(part.word(i), bytes_) for part in parts]
                for x, sums in zip(rows, pairs, strict=True):
                    four = c.b.bitcast(self._four(x, i), bytes_)
                    for word, sum_ in zip(words, sums, strict=True):
                        c.put(c.b.add(c.get(sum_), c.call(times, word, four)), sum_)
                c.keep_order([sum_ for sums in pairs for sum_ in sums])
            for sums, total in zip(pairs, totals, strict=True):
                for sum_, part in zip(sums, parts, strict=True):
                    factors = c.vector(I16, part.times, 2 * lanes)
                    c.put(c.b.add(c.get(total), c.call(joined, c.get(sum_), factors)), total)

    def _one_by_one(self, part: _Part, rows: Sequence[Value], places: range, totals: Sequence[Value]) -> None:
        c = self._c
        for i, byte in product(places, range(4)):
            weight = c.b.and_(c.b.lshr(part.word(i), self._int(8 * byte)), self._int(255))
            for x, total in zip(rows, totals, strict=True):
                one = c.repeated(c.b.sext(c.load(x, 4 * i + byte, I8), I32), self._lanes)
                c.put(c.b.add(c.get(total), c.b.mul(weight, one)), total)

    def _four(self, x: Value, number: int) -> Value:
        """Four bytes of x in every lane."""
        return self._c.repeated(self._c.load(x, 4 * number, I32), self._lanes)

    def _int(self, value: int) -> Value:
        return self._c.vector(I32, value, self._lanes)


def _picked(c: Code, first: Value, second: Value, mask: list[int]) -> Value:
    """Lanes of two concatenated vectors."""
    return c.b.shuffle_vector(first, second, ir.Constant(ir.VectorType(I32, len(mask)), mask))


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
    return 10 if machine.products == "vnni" and _vectors(machine) == 1 else 8


def build(module: ir.Module, machine: Machine, storage: Storage) -> None:
    """Add the kernel `linear` to a module; `storage` is a quantised one."""
    most = _most_rows(machine)
    tiles = {rows: _tile(module, machine, storage, rows) for rows in range(1, most + 1)}
    kernel = Kernel(module, machine, "linear")
    c, record = kernel.code, kernel.record
    first, last = kernel.share(c.div(record.panels, record.unit))
    first, last = c.mul(first, record.unit), c.mul(last, record.unit)
    rows, x = kernel.rows(), kernel.scratch()
    together = c.mul(c.larger(c.div(c.div(c.i(_X_BYTES), c.mul(record.groups, ROUNDED)), most), 1), most)
    with c.loop(rows, step=together) as begin:
        some = c.smaller(c.sub(rows, begin), together)
        round_rows(c, record, storage, c.at(record.x, c.mul(begin, record.x_stride)), some, x)
        y = c.at(record.y, c.mul(begin, record.y_stride))
        height = c.even(some, most)  # a lower tile would take longer for each row
        # If all rows fit a tile, it computes all panels; else all tiles compute a panel.
        span = c.b.select(c.compare(some, "<=", most), c.sub(last, first), c.i(1))
        with c.loop(last, first, span) as panel, c.loop(some, step=height) as row:
            arguments = (
                c.arguments[0], c.at(x, c.mul(row, ROUNDED)), c.mul(some, ROUNDED),
                c.at(y, c.mul(row, record.y_stride)), panel, c.add(panel, span),
            )  # fmt: skip
            count = c.smaller(c.sub(some, row), height)
            c.choose(count, {n: calling(c, tile, *arguments) for n, tile in tiles.items()})
    c.done()


def _tile(module: ir.Module, machine: Machine, storage: Storage, rows: int) -> Any:
    """tile(record, x, x_stride, y, first, last): panels [first, last) for `rows` rows.

    x is rounded; its rows are ROUNDED bytes apart, its groups x_stride bytes.
    """
    c = Code(module, machine, f"tile_{rows}", (POINTER, POINTER, I64, POINTER, I64, I64))
    record_, x, x_stride, y, first, last = c.arguments
    record = Words(c, record_, FIELDS["linear"], 2)
    lanes, size = machine.lanes, panel_bytes(c, record, storage)
    vector = ir.VectorType(F32, lanes) if lanes > 1 else F32
    columns, together = range(0, PANEL, lanes), _vectors(machine)
    with c.loop(last, first) as panel:
        place = c.at(record.weights, c.mul(panel, size))
        sums = [[c.variable(vector, c.vector(F32, 0.0, lanes)) for _ in columns] for _ in range(rows)]

        def group(header: Value, start: Value, number: Value) -> None:
            near = c.at(x, c.mul(number, x_stride))
            for at in range(0, storage.group, 64) if rows >= _MANY or not looks_ahead() else ():
                c.prefetch(start, _AHEAD + at, locality=2)
                if looks_ahead():
                    c.prefetch(start, _NEAR + at)
            near_rows = [c.at(near, ROUNDED * r) for r in range(rows)]
            for at in range(0, len(columns), together):
                some = [
                    QuantisedGroup(c, storage, header, start, column, lanes) for column in columns[at : at + together]
                ]
                _add_group(c, storage, some, near_rows, [each[at : at + together] for each in sums])

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
                bias = c.load(record.bias, c.add(c.mul(panel, 4 * PANEL), 4 * column), F32, lanes)
                c.store(c.b.fadd(c.get(total), bias), out, 4 * column)
    return c.done()


def _add_group(
    c: Code, storage: Storage, weights: Sequence[QuantisedGroup], rows: list[Value], totals: list[list[Value]]
) -> None:
    """Add a group to totals[row][v]: scale * d * sum of products, then least * (d * sum of bytes)."""
    lanes = c.machine.lanes
    vector, whole = (ir.VectorType(k, lanes) if lanes > 1 else k for k in (F32, I32))
    products = IntegerProducts(c, [each.words.__getitem__ for each in weights], storage.bits, lanes)
    scales = len(weights[0].scales)
    share = _DWORDS // scales
    for part in range(scales):
        sums = []
        for x in rows:
            start = c.repeated(c.load(x, STARTS[part], I32), lanes) if _middle(c.machine, storage) else None
            begin = c.vector(I32, 0, lanes) if start is None else start
            sums.append([c.variable(whole, begin) for _ in weights])
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

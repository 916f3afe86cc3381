"""Products of bytes, by the instructions of each machine: four into an int32, two into an int16, or single."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from llvmlite import ir

from services.generation.target.kernels.code import I8, I16, I32, I64, Changing, Code, Value

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
        sums = [[Changing(c.vector(I32, 0, 4)) for _ in range(2)] for _ in pairs]
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
            pairs = [[Changing(c.vector(I16, 0, 2 * lanes)) for _ in parts] for _ in rows]
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

"""Exact sums of products of unsigned bytes (weights) and signed bytes (rounded x), by the CPU's own instructions."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from services.generation.target.canonical.kernels.code import I8, I16, I32, Code, Value

_LARGEST_PAIRS = 32767 // (2 * 127)  # the largest weight whose products with two x fit an int16 together


class IntegerProducts:
    """The weights of some columns and 32 inputs, ready to be multiplied with any number of rows.

    All ways give the same integers: none of them saturates. Two products of a weight up to w and |x| up to 127 sum up
    to 254 w in an int16, so 4-bit weights are added up eight times, 5-bit ones four times, 6-bit ones twice before
    they are widened; 8-bit weights are taken apart into two halves of 4 bits.
    """

    def __init__(self, code: Code, words: Sequence[Value], bits: int, lanes: int) -> None:
        """`words`: eight vectors [lanes] of int32, each four bytes of so many bits."""
        self._c, self._lanes = code, lanes
        self._way = code.machine.products
        self._sets = [(list(words), 1, bits)]
        self._weights: dict[tuple[int, int], Value] = {}
        if self._way == "pairs" and bits == 8:
            four, mask = self._int(4), self._int(0x0F0F0F0F)
            low = [code.b.and_(word, mask) for word in words]
            high = [code.b.and_(code.b.lshr(word, four), mask) for word in words]
            self._sets = [(low, 1, 4), (high, 16, 4)]

    def sum(self, x: Value, first: int, last: int, start: Value) -> Value:
        """start + the products of words [first, last) with as many times four bytes at x, int32 [lanes]."""
        if self._way == "vnni":
            return self._by_fours(x, range(first, last), start)
        if self._way == "pairs":
            for words, factor, bits in self._sets:
                start = self._by_pairs(words, factor, bits, x, range(first, last), start)
            return start
        return self._one_by_one(x, range(first, last), start)

    def _by_fours(self, x: Value, places: range, total: Value) -> Value:
        c, wide = self._c, ir.VectorType(I8, 64)
        words = self._sets[0][0]
        kind = ir.VectorType(I32, 16)
        function = c.external("llvm.x86.avx512.vpdpbusd.512", kind, (kind, wide, wide))
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


_PAIRS = {
    8: ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
    16: ("llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"),
}
"""By lanes: products of bytes summed by twos, products of int16 summed by twos."""

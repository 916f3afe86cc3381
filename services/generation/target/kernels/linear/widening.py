"""Packed weights as vectors inside a kernel: float32, exactly the values of dequantisation, or scaled integers.

A new storage is an entry in `storages.STORAGES` and one in `WIDENINGS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from services.generation.target.kernels.code import F16, F32, I8, I32, Code, Value
from services.generation.target.kernels.storages import BLOCK, GROUP, PANEL, ROTATION, Storage, byte_of, upper_place

STEP = 8  # inputs of a panel that are widened between two loads of an address
_HALVES = 2 * PANEL
_ALL_BYTES = 0x01010101
_MXFP4 = tuple(sign * size for sign in (1.0, -1.0) for size in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0))


def byte_order(storage: Storage) -> list[int]:
    """The inputs of a group in the order of the bytes of `QuantisedGroup.words`."""
    if storage.bits == 8:
        return list(range(GROUP))
    places = {(k // 8, *byte_of(k % 8)): k for k in range(GROUP)}
    return [places[word, half, byte] for word in range(4) for half in range(2) for byte in range(4)]


def block_place(c: Code, storage: Storage, panel: Value, block: Value) -> tuple[Value, Value]:
    """Addresses of the header and of the first group of a block of a panel."""
    per_block = BLOCK // GROUP
    if not storage.header:
        return panel, c.at(panel, c.mul(block, per_block * storage.group))
    shared = storage.groups // per_block
    header = c.at(panel, c.mul(c.div(block, shared), storage.panel(storage.groups * GROUP)))
    return header, c.at(header, c.add(c.mul(c.rem(block, shared), per_block * storage.group), storage.header))


class _Group:
    """The columns [column, column + lanes) of one group of a panel."""

    def __init__(self, code: Code, storage: Storage, header: Value, group: Value, column: int, lanes: int) -> None:
        self.c, self.storage, self.group, self.column, self.lanes = code, storage, group, column, lanes
        self.kind = ir.VectorType(F32, lanes) if lanes > 1 else F32
        self._read_scales(header)

    def _read_scales(self, header: Value) -> None: ...

    def _scale_and_least(self, header: Value) -> tuple[Value, Value | None]:
        """The group's scale, and the number that is added to its scaled integers, if the storage has one."""
        b, group = self.c.b, self.group
        if self.storage.header:
            scale = b.fmul(self._halves(header, 0), self._bytes(group, 0))
            return scale, b.fneg(b.fmul(self._halves(header, _HALVES), self._bytes(group, PANEL)))
        return self._halves(group, 0), None if self.storage.middle else self._halves(group, _HALVES)

    def _halves(self, pointer: Value, at: int) -> Value:
        return self.c.b.fpext(self.c.load(pointer, at + 2 * self.column, F16, self.lanes, 2), self.kind)

    def _bytes(self, pointer: Value, at: int, signed: bool = False) -> Value:
        b = self.c.b
        small = self.c.load(pointer, at + self.column, I8, self.lanes, 1)
        words = ir.VectorType(I32, self.lanes) if self.lanes > 1 else I32
        return b.sitofp(b.sext(small, words) if signed else b.zext(small, words), self.kind)

    def _int(self, value: int) -> Value:
        return self.c.vector(I32, value, self.lanes)


class QuantisedGroup(_Group):
    """Quantised weights of a group's columns: scale * (integer - storage.middle) + least.

    `scales` has one scale for the group, or with q6_k one for each half of it. `least` is None in storages without it.
    """

    def _read_scales(self, header: Value) -> None:
        b, group = self.c.b, self.group
        self.least: Value | None = None
        if self.storage.parts > 1:
            d = self._halves(header, 0)
            parts = range(self.storage.parts)
            self.scales = [b.fmul(d, self._bytes(group, part * PANEL, signed=True)) for part in parts]
        else:
            scale, self.least = self._scale_and_least(header)
            self.scales = [scale]
        self.words = self._words(self.c.at(group, self.storage.scales))

    def word(self, number: int) -> Value:
        return self.words[number]

    def _words(self, values: Value) -> list[Value]:
        """The integers, one in each byte of eight vectors [lanes] of int32."""
        b = self.c.b
        if self.storage.bits == 8:
            turn = self._int(ROTATION[8])
            words = [self._word(values, i) for i in range(8)]
            return [self.c.intrinsic("llvm.fshr", word.type, word, word, turn) for word in words]
        four, mask = self._int(4), self._int(15 * _ALL_BYTES)
        found = []
        for i in range(4):
            word = self._word(values, i)
            found += [b.and_(word, mask), b.and_(b.lshr(word, four), mask)]
        more = self.storage.upper
        for i in range(8) if more else ():
            upper = self._word(values, 4 + i * more // 8)
            shift = i * more % 8
            moved = b.shl(upper, self._int(4 - shift)) if shift < 4 else b.lshr(upper, self._int(shift - 4))
            found[i] = b.or_(found[i], b.and_(moved, self._int(((1 << more) - 1) * 16 * _ALL_BYTES)))
        return found

    def _word(self, values: Value, number: int) -> Value:
        return self.c.load(values, 4 * (PANEL * number + self.column), I32, self.lanes, 4)


class Widening(_Group):
    """Weights of a group's columns as float32; a class for each kind of storage."""

    def begin(self, step: Value) -> None:
        """Go to the inputs from STEP * step on, with which `at` begins."""
        c = self.c
        self.step = step
        self.rows = c.at(self.group, c.add(c.mul(step, self._step_bytes()), self.storage.scales))

    def at(self, k: int) -> Value:
        """The weights of the k-th input after `begin`; k ascends from 0 to STEP - 1."""
        raise NotImplementedError

    @property
    def has_tables(self) -> bool:
        """Whether the machine looks up 16 floats in a register."""
        return self.c.machine.registers == 32 and self.lanes == 16

    def _step_bytes(self) -> int:
        return STEP * PANEL // 2 if self.storage.upper else self.storage.values * STEP // GROUP

    def _load(self, pointer: Value, element: int, kind: Any) -> Value:
        size = {F32: 4, I32: 4, F16: 2, I8: 1}[kind]
        align = min(64, size * self.lanes, self.storage.alignment)
        return self.c.load(pointer, size * (element + self.column), kind, self.lanes, align)

    def _cut(self, k: int, bits: int) -> Value:
        """The k-th value times 2^p, where p is the bit at which even or odd values are without a shift."""
        b, in_word = self.c.b, 32 // bits
        if k % in_word == 0:
            self.word = self._load(self.rows, k // in_word * PANEL, I32)
        place, turn = _places(bits)[k % 2], k % in_word // 2 * 2 * bits
        word = self._rotated(self.word, turn) if turn else self.word
        return b.and_(word, self._int(((1 << bits) - 1) << place))

    def _looked_up(self, k: int, values: Sequence[float]) -> Value:
        """The k-th 4-bit value in a table of sixteen floats: vpermps reads the low four bits of an index."""
        c, b = self.c, self.c.b
        if k == 0:
            self.word = self._load(self.rows, 0, I32)
        turn = (4 * k + ROTATION[4]) % 32
        index = b.lshr(self.word, self._int(turn)) if turn else self.word
        table = ir.Constant(self.kind, [float(value) for value in values])
        function = c.external("llvm.x86.avx512.permvar.sf.512", self.kind, (self.kind, ir.VectorType(I32, 16)))
        return c.call(function, table, index)

    def _rotated(self, words: Value, right: int) -> Value:
        return self.c.intrinsic("llvm.fshr", words.type, words, words, self._int(right)) if right else words

    def _times(self, vector: Value, factor: float) -> Value:
        return self.c.b.fmul(vector, self._real(factor))

    def _real(self, value: float) -> Value:
        return self.c.vector(F32, value, self.lanes)


class _Float32(Widening):
    def at(self, k: int) -> Value:
        return self._load(self.rows, k * PANEL, F32)


class _Float16(Widening):
    def at(self, k: int) -> Value:
        return self.c.b.fpext(self._load(self.rows, k * PANEL, F16), self.kind)


class _Bfloat16(Widening):
    def at(self, k: int) -> Value:
        b = self.c.b
        if k % 2 == 0:
            self.word = self._load(self.rows, k // 2 * PANEL, I32)
            return b.bitcast(b.shl(self.word, self._int(16)), self.kind)
        return b.bitcast(b.and_(self.word, self._int(0xFFFF0000)), self.kind)


class _Raised(Widening):
    """q8_0 and q4_0: the bits of a value, in the mantissa of a power of two, are that power plus the value, and the fma
    that scales subtracts the power and the middle, exactly.
    """

    def _read_scales(self, header: Value) -> None:
        self.d = self._halves(self.group, 0)
        middle, places = self.storage.middle, _places(self.storage.bits)
        self.less = [self._times(self.d, -float((1 << (23 - p)) + middle)) for p in places]

    def at(self, k: int) -> Value:
        b, bits = self.c.b, self.storage.bits
        if bits == 4 and self.has_tables:
            return b.fmul(self._looked_up(k, range(-8, 8)), self.d)
        power = self._int((127 + 23 - _places(bits)[k % 2]) << 23)
        return self.c.fma(b.bitcast(b.or_(self._cut(k, bits), power), self.kind), self.d, self.less[k % 2])


class _FourBits1(Widening):
    def _read_scales(self, header: Value) -> None:
        self.d, self.m = self._scale_and_least(header)
        self.scaled = [self._times(self.d, 2.0**-place) for place in _places(4)]

    def at(self, k: int) -> Value:
        if self.has_tables:
            return self.c.fma(self._looked_up(k, range(16)), self.d, self.m)
        return self.c.fma(self.c.b.sitofp(self._cut(k, 4), self.kind), self.scaled[k % 2], self.m)


class _Joined(Widening):
    """Values of four bits, and upper bits in further words: one fma of the value, d and m, which rounds the sum alone.

    Of q5_0, without a minimum, fma(q, d, -16 d) is d * (q - 16): at most 16 significant bits, and so exact.
    """

    def _read_scales(self, header: Value) -> None:
        self.d, least = self._scale_and_least(header)
        self.m = self._times(self.d, -float(self.storage.middle)) if least is None else least

    def at(self, k: int) -> Value:
        c, b, bits = self.c, self.c.b, self.storage.upper
        if k == 0:
            self.word = self._load(self.rows, 0, I32)
        value = b.and_(self._rotated(self.word, (4 * k + ROTATION[4]) % 32), self._int(15))
        if bits:
            if k == 0:
                place = c.mul(c.div(c.mul(self.step, STEP * bits), 32), 4 * PANEL)
                words = c.at(self.group, c.add(place, self.storage.group - GROUP * PANEL * bits // 8))
                shift = c.repeated(c.b.trunc(c.rem(c.mul(self.step, 2 * bits), 8), I32), self.lanes)
                self.high = b.lshr(self._load(words, 0, I32), shift)
            upper = b.and_(b.lshr(self.high, self._int(upper_place(bits, k))), self._int((1 << bits) - 1))
            value = b.or_(value, b.shl(upper, self._int(4)))
        return c.fma(b.sitofp(value, self.kind), self.d, self.m)


class _SixBitsK(_Joined):
    def _read_scales(self, header: Value) -> None:
        self.header = self._halves(header, 0)

    def begin(self, step: Value) -> None:
        super().begin(step)
        c = self.c
        scale = c.at(self.group, c.mul(c.div(step, 2), PANEL))
        self.d = c.b.fmul(self.header, self._bytes(scale, 0, signed=True))
        self.m = self._times(self.d, -float(self.storage.middle))


class _Mxfp4(Widening):
    def _read_scales(self, header: Value) -> None:
        """2^(e - 127) for the group's exponents: their bits as a float's exponent; 0 is half of the smallest float."""
        b = self.c.b
        exponent = self._load(self.group, 0, I8)
        e = b.zext(exponent, ir.VectorType(I32, self.lanes) if self.lanes > 1 else I32)
        is_zero = b.icmp_unsigned("==", e, self._int(0))
        self.d = b.bitcast(b.select(is_zero, self._int(1 << 22), b.shl(e, self._int(23))), self.kind)

    def at(self, k: int) -> Value:
        return self.c.b.fmul(self._looked_up(k, _MXFP4) if self.has_tables else self._four_bit_float(k), self.d)

    def _four_bit_float(self, k: int) -> Value:
        """The k-th value: a sign, two bits of exponent, one of mantissa.

        Added to the bits of 0.5, the lower three bits give 0.5, 0.75, 1, 1.5, 2, 3, 4, 6. min(2 y - 1, y) turns the
        first two into 0 and 0.5, exactly, and leaves the others.
        """
        c, b = self.c, self.c.b
        if k == 0:
            self.word = self._load(self.rows, 0, I32)
        word = self._rotated(self.word, (4 * k + ROTATION[4] - 22) % 32)  # the value at bit 22
        size = b.add(b.and_(word, self._int(7 << 22)), self._int(126 << 23))
        y = b.bitcast(size, self.kind)
        less = c.fma(y, self._real(2.0), self._real(-1.0))
        y = b.bitcast(b.select(b.fcmp_ordered("<", less, y), less, y), size.type)
        sign = b.and_(b.shl(word, self._int(6)), self._int(1 << 31))
        return b.bitcast(b.or_(y, sign), self.kind)


WIDENINGS: dict[str, type[Widening]] = {
    "float32": _Float32, "float16": _Float16, "bfloat16": _Bfloat16, "q8_0": _Raised, "q4_0": _Raised,
    "q4_1": _FourBits1, "q5_0": _Joined, "q5_1": _Joined, "q4_k": _Joined, "q5_k": _Joined, "q6_k": _SixBitsK,
    "mxfp4": _Mxfp4,
}  # fmt: skip
"""Classes by the name of a storage."""


def _places(bits: int) -> tuple[int, int]:
    """The bits at which even and odd values of a rotated word are extracted."""
    return ROTATION[bits], ROTATION[bits] + bits

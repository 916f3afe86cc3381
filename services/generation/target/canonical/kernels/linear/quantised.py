"""A group of quantised weights as it is published: small integers, and what they are scaled by."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from services.generation.target.canonical.kernels.code import F16, F32, I8, I32, Code, Value
from services.generation.target.canonical.kernels.storages import GROUP, PANEL, ROTATION, Storage, byte_of

BITS = {"q8_0": 8, "q4_0": 4, "q4_1": 4, "q4_k": 4, "q5_k": 5, "q6_k": 6}
MIDDLE = {"q8_0": 128, "q4_0": 8, "q6_k": 32}
"""The offset of the unsigned integers: it is subtracted from them. Other storages have none."""
_HALVES = 2 * PANEL
_ALL_BYTES = 0x01010101


def byte_order(storage: Storage) -> list[int]:
    """The inputs of a group in the order of the bytes that `QuantisedGroup.words` gives."""
    if storage.name == "q8_0":
        return list(range(GROUP))
    places = {(k // 8, *byte_of(k % 8)): k for k in range(GROUP)}
    return [places[word, half, byte] for word in range(4) for half in range(2) for byte in range(4)]


class QuantisedGroup:
    """The weights of one group for the columns [column, column + lanes) of a panel: scale * (integer - MIDDLE) + least.

    `scales` are of the whole group, or with q6_k of each half of it. `least` is nothing where a storage has none.
    """

    def __init__(self, code: Code, storage: Storage, header: Value, group: Value, column: int, lanes: int) -> None:
        self._c, self._storage, self._column, self._lanes = code, storage, column, lanes
        b, name = code.b, storage.name
        self.least: Value | None = None
        if name == "q6_k":
            d = self._halves(header, 0)
            self.scales = [b.fmul(d, self._bytes(group, half * PANEL, signed=True)) for half in range(2)]
        elif storage.header:
            self.scales = [b.fmul(self._halves(header, 0), self._bytes(group, 0))]
            self.least = b.fneg(b.fmul(self._halves(header, _HALVES), self._bytes(group, PANEL)))
        else:
            self.scales = [self._halves(group, 0)]
            if name == "q4_1":
                self.least = self._halves(group, _HALVES)
        self.words = self._words(code.at(group, storage.scales))

    def _words(self, values: Value) -> list[Value]:
        """The integers, one in each byte of eight vectors [lanes] of int32."""
        b, bits = self._c.b, BITS[self._storage.name]
        if bits == 8:
            turn = self._int(ROTATION[8])
            words = [self._word(values, i) for i in range(8)]
            return [self._c.intrinsic("llvm.fshr", word.type, word, word, turn) for word in words]
        four, mask = self._int(4), self._int(15 * _ALL_BYTES)
        found = []
        for i in range(4):
            word = self._word(values, i)
            found += [b.and_(word, mask), b.and_(b.lshr(word, four), mask)]
        more = bits - 4
        for i in range(8) if more else ():
            upper = self._word(values, 4 + i * more // 8)
            shift = i * more % 8
            moved = b.shl(upper, self._int(4 - shift)) if shift < 4 else b.lshr(upper, self._int(shift - 4))
            found[i] = b.or_(found[i], b.and_(moved, self._int(((1 << more) - 1) * 16 * _ALL_BYTES)))
        return found

    def _word(self, values: Value, number: int) -> Value:
        return self._load(values, 4 * PANEL * number, I32, 4)

    def _halves(self, pointer: Value, at: int) -> Value:
        return self._c.b.fpext(self._load(pointer, at, F16, 2), self._kind(F32))

    def _bytes(self, pointer: Value, at: int, signed: bool = False) -> Value:
        b, small = self._c.b, self._load(pointer, at, I8, 1)
        whole = b.sext(small, self._kind(I32)) if signed else b.zext(small, self._kind(I32))
        return b.sitofp(whole, self._kind(F32))

    def _load(self, pointer: Value, at: int, kind: Any, size: int) -> Value:
        return self._c.load(pointer, at + size * self._column, kind, self._lanes, size)

    def _kind(self, element: Any) -> Any:
        return ir.VectorType(element, self._lanes) if self._lanes > 1 else element

    def _int(self, value: int) -> Value:
        return self._c.vector(I32, value, self._lanes)

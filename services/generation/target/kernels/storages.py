"""The layout of packed weights: panels of 32 columns, each of groups of 32 inputs, which passes read sequentially.

A group has its scales, then the values of its 32 inputs for the 32 columns, adjacent columns next to each other:

    float32   f32 [32][32]
    bfloat16  u32 [16][32]                                    an even input in the low half, an odd one above it
    float16   f16 [32][32]
    q8_0      f16 d[32]; u32 [8][32]                          w = d * q
    q4_0      f16 d[32]; u32 [4][32]                          w = d * (q - 8)
    q4_1      f16 d[32]; f16 m[32]; u32 [4][32]               w = d * q + m
    q5_0      f16 d[32]; u32 [4][32]; u32 [32]                w = d * (q - 16)
    q5_1      f16 d[32]; f16 m[32]; u32 [4][32]; u32 [32]     w = d * q + m
    q4_k      u8 s[32]; u8 t[32]; u32 [4][32]                 w = (d * s) * q - (e * t)
    q5_k      u8 s[32]; u8 t[32]; u32 [4][32]; u32 [32]       likewise
    q6_k      i8 s[2][32]; u32 [4][32]; u32 [2][32]           w = (d * s) * (q - 32), a scale for 16 inputs
    mxfp4     u8 e[32]; u32 [4][32]                           w = v * 2^(e - 127), v a float of four bits

In the K storages eight groups share a header: f16 d[32], and f16 e[32] except in q6_k. All products are exact in
float32, so that at most the last addition rounds: w is the float32 of dequantisation. iq4_nl has a whole number from
-127 to 113 for each of its sixteen q, and is packed as the q8_0 with the same d and these numbers (`packed_as`).

A word has four 8-bit values (q + 128) or eight 4-bit values, the first input in the lowest bits, and is rotated left
(`ROTATION`), which saves the kernels a shift. Upper bits of 32 or 16 values are ordered in their word so that one shift
and one mask move the upper bits of four inputs above the four values that a mask extracts from a word of 4-bit values.

A storage's `block` has the place in a published block of each bit of these words: ggml's block_q8_0, block_q4_K etc.; a
block of plain numbers is a group of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

PANEL = 32  # columns
GROUP = 32  # inputs
BLOCK = 128  # terms of a partial sum: docs/numerics.md, Linear
ROTATION = {8: 4, 4: 12}
SLACK = 1 << 16  # bytes after packed weights that kernels may prefetch
ZERO = -1  # in place of a bit's place
_HALF = (0x7C00,)  # the exponent of infinity and NaN
_WORD = 32  # bits


@dataclass(frozen=True, slots=True)
class Number:
    """A number of each column: the places of its bits in the block, the lowest first; bits that are inverted; exponents
    of values that are not finite.
    """

    bits: tuple[int, ...]
    inverted: int = 0
    infinite: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PlainBlock:
    """A block of plain numbers, which are packed in numbers of `width` bits."""

    width: int
    infinite: tuple[int, ...]

    def numbers(self, storage: Storage) -> list[Number]:
        count, width = GROUP * storage.bits // self.width, self.width
        return [Number(tuple(range(width * at, width * (at + 1))), 0, self.infinite) for at in range(count)]


@dataclass(frozen=True, slots=True)
class ScaledBlock:
    """A block of 4-bit values with upper bits elsewhere, or of 8-bit values, with scales. `lower` and `upper` are the
    places of the lowest bit of the k-th value's parts.
    """

    scales: Callable[[int], Sequence[Number]]
    """Scales, and minima, of a group of the block."""
    lower: Callable[[int], int]
    upper: Callable[[int], int] | None = None
    header: Sequence[Number] = ()

    def numbers(self, storage: Storage) -> list[Number]:
        """The numbers of the header and of the groups, in the order of the packed ones."""
        found = [*self.header]
        for group in range(storage.groups):
            found += [*self.scales(group), *self._words(storage, group)]
        return found

    def _words(self, storage: Storage, group: int) -> list[Number]:
        """The words of a group's values, then those of their upper bits."""
        bits, more, values = storage.bits - storage.upper, storage.upper, range(GROUP * group, GROUP * (group + 1))
        count = _WORD // bits
        inverted = sum(1 << (bits * k + bits - 1 + ROTATION[bits]) % _WORD for k in range(count)) if bits == 8 else 0

        def word(first: int) -> Number:
            places = [ZERO] * _WORD
            for k, bit in ((k, bit) for k in range(count) for bit in range(bits)):
                places[(bits * k + bit + ROTATION[bits]) % _WORD] = self.lower(values[first + k]) + bit
            return Number(tuple(places), inverted)

        def upper(first: int) -> Number:
            assert self.upper is not None
            places = [ZERO] * _WORD
            for k, bit in ((k, bit) for k in range(_WORD // more) for bit in range(more)):
                places[upper_place(more, k) + bit] = self.upper(values[first + k]) + bit
            return Number(tuple(places))

        uppers = [upper(first) for first in range(0, GROUP, _WORD // more)] if more else []
        return [*(word(first) for first in range(0, GROUP, count)), *uppers]


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage of packed weights. Sizes in bytes."""

    name: str
    bits: int  # of a value
    block: PlainBlock | ScaledBlock
    middle: int = 0  # subtracted from a value
    groups: int = 1  # that share a header
    parts: int = 1  # of a group of whole numbers, that have a scale each
    quantised: bool = True  # whether values are whole numbers

    @property
    def upper(self) -> int:
        """Bits of a value outside of words of 4-bit values."""
        return self.bits - 4 if 4 < self.bits < 8 else 0

    @property
    def scales(self) -> int:
        """The scales of a group."""
        return _size(self.block.scales(0)) if isinstance(self.block, ScaledBlock) else 0

    @property
    def values(self) -> int:
        """The values of a group."""
        return self.bits * GROUP * PANEL // 8

    @property
    def header(self) -> int:
        """The header before the groups that share it."""
        return _size(self.block.header) if isinstance(self.block, ScaledBlock) else 0

    @property
    def group(self) -> int:
        return self.scales + self.values

    @property
    def alignment(self) -> int:
        """The alignment of groups, in bytes: a power of two."""
        return self.group & -self.group

    def panel(self, inputs: int) -> int:
        """Bytes of a panel of weights of `inputs` inputs, a multiple of GROUP."""
        count = inputs // GROUP
        return count * self.group + -(-count // self.groups) * self.header


def _size(numbers: Sequence[Number]) -> int:
    """Bytes of numbers of a panel's columns."""
    return PANEL * sum(len(number.bits) for number in numbers) // 8


def _half(byte: int) -> Number:
    return Number(tuple(range(8 * byte, 8 * byte + 16)), 0, _HALF)


def _byte(byte: int, *infinite: int) -> Number:
    return Number(tuple(range(8 * byte, 8 * byte + 8)), 0, infinite)


def _scale(group: int) -> list[Number]:
    return [_half(0)]


def _scale_and_minimum(group: int) -> list[Number]:
    return [_half(0), _half(2)]


def _six_bits(group: int) -> list[Number]:
    """A scale and a minimum of six bits each (ggml's get_scale_min_k4)."""

    def number(minimum: int) -> Number:
        own = 8 * (4 + minimum + group % 4)
        if group < 4:
            return Number((*range(own, own + 6), ZERO, ZERO))
        low = 8 * (12 + group % 4) + minimum
        return Number((*range(low, low + 4), own + 6, own + 7, ZERO, ZERO))

    return [number(minimum) for minimum in (0, 4)]


def _nibbles(before: int) -> Callable[[int], int]:
    """Values of 4 bits, 32 in 16 bytes after the first bytes of a block: the lower halves of the bytes, then the upper
    ones.
    """
    return lambda k: 8 * (before + k % 16) + 4 * (k // 16)


def _quarters(before: int) -> Callable[[int], int]:
    """Likewise 64 in each 32 bytes."""
    return lambda k: 8 * (before + k // 64 * 32 + k % 32) + 4 * (k % 64 // 32)


_TOPS = _half(0), _half(2)  # factors of a K block's scales and minima
STORAGES = {
    storage.name: storage
    for storage in (
        Storage("float32", 32, PlainBlock(32, (0x7F800000,)), quantised=False),
        Storage("bfloat16", 16, PlainBlock(32, (0x7F80, 0x7F800000)), quantised=False),
        Storage("float16", 16, PlainBlock(16, _HALF), quantised=False),
        Storage("q8_0", 8, ScaledBlock(_scale, lambda k: 8 * (2 + k)), middle=128),
        Storage("q4_0", 4, ScaledBlock(_scale, _nibbles(2)), middle=8),
        Storage("q4_1", 4, ScaledBlock(_scale_and_minimum, _nibbles(4))),
        Storage("q5_0", 5, ScaledBlock(_scale, _nibbles(6), lambda k: 8 * 2 + k), middle=16),
        Storage("q5_1", 5, ScaledBlock(_scale_and_minimum, _nibbles(8), lambda k: 8 * 4 + k)),
        Storage("q4_k", 4, ScaledBlock(_six_bits, _quarters(16), header=_TOPS), groups=8),
        Storage(
            "q5_k", 5, ScaledBlock(_six_bits, _quarters(48), lambda k: 8 * (16 + k % 32) + k // 32, _TOPS), groups=8
        ),
        Storage(
            "q6_k", 6,
            ScaledBlock(
                lambda group: [_byte(192 + 2 * group), _byte(193 + 2 * group)],
                lambda k: 8 * (k // 128 * 64 + k % 64) + 4 * (k % 128 // 64),
                lambda k: 8 * (128 + k // 128 * 32 + k % 32) + 2 * (k % 128 // 32),
                header=(_half(208),),
            ),
            middle=32, groups=8, parts=2,
        ),
        # 255 is not a number; with 253 or 254, six times the scale may be infinite
        Storage("mxfp4", 4, ScaledBlock(lambda group: [_byte(0, 0xFD, 0xFE)], _nibbles(1)), quantised=False),
    )
}  # fmt: skip


def packed_as(storage: str) -> Storage:
    """The storage in which published weights are packed."""
    return STORAGES["q8_0" if storage == "iq4_nl" else storage]


def byte_of(k: int) -> tuple[int, int]:
    """The place of the k-th of eight 4-bit values in a rotated word: 1 for a byte's upper half, and the byte."""
    place = (k + ROTATION[4] // 4) % 8
    return place % 2, place // 2


def upper_place(bits: int, k: int) -> int:
    """The lowest bit of the k-th value's upper `bits` in their word, which has upper bits of 32 / bits values."""
    half, byte = byte_of(k % 8)
    return 8 * byte + bits * (2 * (k // 8) + half)


def padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple

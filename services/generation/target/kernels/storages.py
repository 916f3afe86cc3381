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
"""

from __future__ import annotations

from dataclasses import dataclass

PANEL = 32  # columns
GROUP = 32  # inputs
BLOCK = 128  # terms of a partial sum: docs/numerics.md, Linear
ROTATION = {8: 4, 4: 12}
_HALVES = 2 * PANEL  # bytes of a float16 for each column
SLACK = 1 << 16  # bytes after packed weights that kernels may prefetch


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage of packed weights. Sizes in bytes."""

    name: str
    scales: int  # of a group's scales
    values: int  # of a group's values
    header: int = 0  # before the groups that share it
    groups: int = 1  # that share a header
    bits: int = 0  # of a value, 0 if values are no whole numbers
    middle: int = 0  # subtracted from a value

    @property
    def upper(self) -> int:
        """Bits of a value outside of words of 4-bit values."""
        return self.bits - 4 if 4 < self.bits < 8 else 0

    @property
    def parts(self) -> int:
        """Parts of a group of whole numbers that have a scale each."""
        return 2 if self.name == "q6_k" else 1

    @property
    def group(self) -> int:
        return self.scales + self.values

    @property
    def alignment(self) -> int:
        """The alignment of groups, in bytes: a power of two."""
        return self.group & -self.group

    @property
    def quantised(self) -> bool:
        """Whether values are whole numbers."""
        return self.bits > 0

    def panel(self, inputs: int) -> int:
        """Bytes of a panel of weights of `inputs` inputs, a multiple of GROUP."""
        count = inputs // GROUP
        return count * self.group + -(-count // self.groups) * self.header


STORAGES = {
    storage.name: storage
    for storage in (
        Storage("float32", 0, 4 * GROUP * PANEL),
        Storage("bfloat16", 0, 2 * GROUP * PANEL),
        Storage("float16", 0, 2 * GROUP * PANEL),
        Storage("q8_0", _HALVES, GROUP * PANEL, bits=8, middle=128),
        Storage("q4_0", _HALVES, GROUP * PANEL // 2, bits=4, middle=8),
        Storage("q4_1", 2 * _HALVES, GROUP * PANEL // 2, bits=4),
        Storage("q5_0", _HALVES, GROUP * PANEL // 2 + 4 * PANEL, bits=5, middle=16),
        Storage("q5_1", 2 * _HALVES, GROUP * PANEL // 2 + 4 * PANEL, bits=5),
        Storage("q4_k", 2 * PANEL, GROUP * PANEL // 2, 2 * _HALVES, 8, bits=4),
        Storage("q5_k", 2 * PANEL, GROUP * PANEL // 2 + 4 * PANEL, 2 * _HALVES, 8, bits=5),
        Storage("q6_k", 2 * PANEL, GROUP * PANEL // 2 + 8 * PANEL, _HALVES, 8, bits=6, middle=32),
        Storage("mxfp4", PANEL, GROUP * PANEL // 2),
    )
}


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

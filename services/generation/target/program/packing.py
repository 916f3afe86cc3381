"""The packing of published weights into panels (`storages`), without rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.target.arrays import Bytes, Int64
from services.generation.target.kernels.storages import GROUP, PANEL, ROTATION, Storage, packed_as, padded, upper_place
from services.generation.target.program.buffers import on_huge_pages

_CHUNK = 64 * PANEL  # columns that are packed at a time
_IQ4_NL = np.array((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.int8)


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeights:
    """Weights [columns, inputs] as kernels read them; `panels` [panels, bytes of a panel]."""

    storage: Storage
    columns: int
    inputs: int
    panels: Bytes

    @property
    def padded_inputs(self) -> int:
        return padded(self.inputs, GROUP)


def pack(storage_name: str, inputs: int, rows: Bytes, order: Int64 | None = None) -> PackedWeights:
    """Pack published rows [columns, bytes of a row] of `inputs` weights each.

    `order` gives the row that each column of the packed weights holds, -1 for a column of zeros: layers that are
    computed together are one packed matrix.
    """
    storage = packed_as(storage_name)
    order = np.arange(len(rows)) if order is None else order
    count = padded(len(order), PANEL)
    whole = np.full(count, -1, np.int64)
    whole[: len(order)] = order
    packed = on_huge_pages(count // PANEL * storage.panel(padded(inputs, GROUP))).reshape(count // PANEL, -1)
    for first in range(0, count, _CHUNK):
        chosen = whole[first : first + _CHUNK]
        part = rows[np.maximum(chosen, 0)]
        part[chosen < 0] = 0
        part = _in_bytes(part) if storage_name == "iq4_nl" else part
        packed[first // PANEL : (first + len(chosen)) // PANEL] = _panels(storage, inputs, part)
    return PackedWeights(storage, len(order), inputs, packed)


def _panels(storage: Storage, inputs: int, rows: Bytes) -> Bytes:
    """Rows [n, bytes], n a multiple of PANEL, as [n / PANEL, bytes of a panel]."""
    groups = padded(inputs, GROUP) // GROUP
    header, parts = _parts(storage.name, inputs, rows)
    panels = len(rows) // PANEL
    group = np.concatenate([p.reshape(panels, groups, -1) for p in parts], axis=-1)
    if not storage.header:
        return group.reshape(panels, -1)
    shared = groups // storage.groups
    tops = np.concatenate([_side_by_side(h, panels) for h in header], axis=-1).reshape(panels, shared, -1)
    return np.concatenate([tops, group.reshape(panels, shared, -1)], axis=-1).reshape(panels, -1)


def _parts(name: str, inputs: int, rows: Bytes) -> tuple[list[Bytes], list[Bytes]]:
    """(headers [n, shared, bytes of a scale], parts of a group [panels, groups, bytes]) of rows [n, bytes]."""
    panels = len(rows) // PANEL
    if name in ("float32", "float16", "bfloat16"):
        return [], [_plain(name, inputs, rows)]
    if name in ("q8_0", "q4_0", "q4_1"):
        blocks = rows.reshape(len(rows), -1, {"q8_0": 34, "q4_0": 18, "q4_1": 20}[name])
        scales = [_side_by_side(blocks[..., at : at + 2], panels) for at in range(0, 4 if name == "q4_1" else 2, 2)]
        if name == "q8_0":
            return [], [*scales, _words(blocks[..., 2:] ^ 0x80, 8, panels)]
        return [], [*scales, _words(_nibbles(blocks[..., -16:]), 4, panels)]
    if name in ("q5_0", "q5_1"):
        blocks = rows.reshape(len(rows), -1, 22 if name == "q5_0" else 24)
        halves = 2 if name == "q5_0" else 4
        scales = [_side_by_side(blocks[..., at : at + 2], panels) for at in range(0, halves, 2)]
        upper = np.unpackbits(blocks[..., halves : halves + 4], axis=-1, bitorder="little")
        values = _nibbles(blocks[..., halves + 4 :])
        return [], [*scales, _words(values, 4, panels), _words(_upper(upper, 1), 1, panels)]
    if name == "mxfp4":
        blocks = rows.reshape(len(rows), -1, 17)
        return [], [_side_by_side(blocks[..., :1], panels), _words(_nibbles(blocks[..., 1:]), 4, panels)]
    return _parts_of_k(name, rows)


def _parts_of_k(name: str, rows: Bytes) -> tuple[list[Bytes], list[Bytes]]:
    """`_parts` of the kinds with 256 weights to a header; blocks are laid out as in ggml's block_q4_K and its kin."""
    count, panels = len(rows), len(rows) // PANEL
    blocks = rows.reshape(count, -1, {"q4_k": 144, "q5_k": 176, "q6_k": 210}[name])
    if name == "q6_k":
        low, high = blocks[..., :128].reshape(count, -1, 2, 2, 32), blocks[..., 128:192].reshape(count, -1, 2, 1, 32)
        low = np.concatenate([low & 15, low >> 4], axis=-2).reshape(count, -1, GROUP)
        high = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=-2).reshape(count, -1, GROUP)
        scales = blocks[..., 192:208].reshape(count, -1, 2)
        both = np.concatenate([_side_by_side(scales[..., j : j + 1], panels) for j in (0, 1)], axis=-1)
        return [blocks[..., 208:210]], [both, _words(low, 4, panels), _words(_upper(high, 2), 2, panels)]
    scales, least = _six_bits(blocks[..., 4:16])
    parts = [_side_by_side(s.reshape(count, -1, 1), panels) for s in (scales, least)]
    values: NDArray[Any] = blocks[..., -128:].reshape(count, -1, 4, 1, 32)
    values = np.concatenate([values & 15, values >> 4], axis=-2).reshape(count, -1, GROUP)
    parts.append(_words(values, 4, panels))
    if name == "q5_k":
        bits = np.arange(8, dtype=np.uint8)[:, None]
        upper = (blocks[..., 16:48][..., None, :] >> bits & 1).reshape(count, -1, GROUP)
        parts.append(_words(_upper(upper, 1), 1, panels))
    return [blocks[..., 0:2], blocks[..., 2:4]], parts


def _six_bits(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight scales and eight minima of six bits each, from 12 bytes (ggml's get_scale_min_k4)."""
    a, b, c = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([a & 63, (c & 15) | (a >> 6 << 4)], axis=-1)
    return scales, np.concatenate([b & 63, (c >> 4) | (b >> 6 << 4)], axis=-1)


def _in_bytes(rows: Bytes) -> Bytes:
    """Rows of iq4_nl as the q8_0 that has its scales, and its values as they are."""
    blocks = rows.reshape(len(rows), -1, 18)
    values = _IQ4_NL[_nibbles(blocks[..., 2:])].view(np.uint8)
    return np.concatenate([blocks[..., :2], values], axis=-1).reshape(len(rows), -1)


def _nibbles(packed: Bytes) -> Bytes:
    """Blocks [n, groups, 16] as values [n, groups, 32]: the low halves come first."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _side_by_side(scales: Bytes, panels: int) -> Bytes:
    """Scales [n, groups, bytes of one] as [panels, groups, PANEL * bytes of one]."""
    _, groups, size = scales.shape
    return np.ascontiguousarray(scales.reshape(panels, PANEL, groups, size).transpose(0, 2, 1, 3)).reshape(
        panels, groups, -1
    )


def _plain(name: str, inputs: int, rows: Bytes) -> Bytes:
    kind = np.uint32 if name == "float32" else np.uint16
    values = np.pad(np.ascontiguousarray(rows).view(kind), ((0, 0), (0, -inputs % GROUP)))
    # [panel, group, input, column]
    lines: NDArray[Any] = values.reshape(len(rows) // PANEL, PANEL, -1, GROUP).transpose(0, 2, 3, 1)
    if name == "bfloat16":
        lines = lines[:, :, 0::2].astype(np.uint32) | lines[:, :, 1::2].astype(np.uint32) << 16
    flat = np.ascontiguousarray(lines).reshape(*lines.shape[:2], -1)
    return flat.view(np.uint8)


def _upper(values: NDArray[Any], bits: int) -> NDArray[Any]:
    """Upper bits [n, groups, 32] in the order in which they lie in their words."""
    in_word = 32 // bits
    order = np.argsort([upper_place(bits, k) for k in range(in_word)])
    return values.reshape(*values.shape[:2], -1, in_word)[..., order].reshape(values.shape)


def _words(values: NDArray[Any], bits: int, panels: int) -> Bytes:
    """Values [n, groups, 32] of `bits` bits as words [panels, groups, bytes]."""
    in_word = 32 // bits
    fields = values.reshape(panels, PANEL, -1, GROUP // in_word, in_word)
    words = np.zeros((panels, fields.shape[2], GROUP // in_word, PANEL), np.uint32)
    for j in range(in_word):
        words |= fields[..., j].transpose(0, 2, 3, 1).astype(np.uint32) << np.uint32(bits * j)
    turn = ROTATION.get(bits, 0)
    if turn:
        words = words << np.uint32(turn) | words >> np.uint32(32 - turn)
    return words.reshape(panels, words.shape[1], -1).view(np.uint8)

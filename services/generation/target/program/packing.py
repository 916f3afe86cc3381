"""The packing of published weights into panels (`storages`), without rounding, on all CPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.target.arrays import Bytes, Int64
from services.generation.target.files.stored_tensor import LAYOUTS
from services.generation.target.kernels.storages import (
    GROUP,
    PANEL,
    ROTATION,
    Storage,
    packed_as,
    padded,
    upper_place,
)
from services.generation.target.program.buffers import on_huge_pages

_CHUNK_BYTES = 1 << 18  # of published rows per step, so that intermediate results stay in a core's cache
_CPUS = len(os.sched_getaffinity(0))
_SHIFTS = np.arange(8, dtype=np.uint64)[:, None]
_IQ4_NL = np.array((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.int8)

Field = NDArray[Any]
"""Numbers of all columns, [columns, groups or headers, n], in their stored type."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeights:
    """Packed weights [columns, inputs]; `panels` [panels, bytes of a panel]."""

    storage: Storage
    columns: int
    inputs: int
    panels: Bytes

    @property
    def padded_inputs(self) -> int:
        return padded(self.inputs, GROUP)


def pack(storage_name: str, inputs: int, rows: Bytes, order: Int64 | None = None) -> PackedWeights:
    """Pack published rows [columns, bytes of a row] of `inputs` weights each.

    `order` is the row of each packed column, -1 for a column of zeros: layers that are computed together are one packed
    matrix.
    """
    storage = packed_as(storage_name)
    columns = len(rows) if order is None else len(order)
    panels = padded(columns, PANEL) // PANEL
    packed = on_huge_pages(panels * storage.panel(padded(inputs, GROUP))).reshape(panels, -1)
    step = max(1, _CHUNK_BYTES // (PANEL * rows.shape[1]))

    def fill(first: int) -> None:
        chosen = _rows(rows, order, columns, first * PANEL, min(first + step, panels) * PANEL)
        if storage_name == "iq4_nl":
            chosen = _in_bytes(chosen)
        _fill(packed[first : first + step], storage, *_fields(storage.name, inputs, chosen))

    chunks = range(0, panels, step)
    if len(chunks) == 1:
        fill(0)
    else:
        with ThreadPoolExecutor(_CPUS) as pool:
            list(pool.map(fill, chunks))
    return PackedWeights(storage, columns, inputs, packed)


def _rows(rows: Bytes, order: Int64 | None, columns: int, first: int, end: int) -> Bytes:
    """The rows of the columns from `first` to `end`, or zeros for columns without a row."""
    if order is None and end <= columns:
        return rows[first:end]
    chosen = np.arange(first, columns) if order is None else order[first:end]
    found = np.zeros((end - first, rows.shape[1]), np.uint8)
    found[: len(chosen)] = rows[np.maximum(chosen, 0)]
    found[: len(chosen)][chosen < 0] = 0
    return found


def _fill(panels: Bytes, storage: Storage, header: Sequence[Field], fields: Sequence[Field]) -> None:
    """Write fields into panels [panels, bytes], with adjacent columns next to each other."""
    shared = panels.reshape(len(panels), -1, storage.header + storage.groups * storage.group)
    groups = shared[..., storage.header :].reshape(*shared.shape[:2], storage.groups, storage.group)
    _write(shared[..., None, : storage.header], header)
    _write(groups, fields)


def _write(places: Bytes, fields: Sequence[Field]) -> None:
    """Write fields one after another into places [panels, headers, groups of a header, bytes]."""
    panels, first = len(places), 0
    for field in fields:
        end = first + field.nbytes // (places.size // places.shape[-1])
        # [panels, headers, groups of a header, n, columns]
        ordered = field.reshape(panels, PANEL, *places.shape[1:3], -1).transpose(0, 2, 3, 4, 1)
        places[..., first:end].view(field.dtype).reshape(ordered.shape)[...] = ordered
        first = end


def _fields(name: str, inputs: int, rows: Bytes) -> tuple[list[Field], list[Field]]:
    """The fields of headers, and of groups, of rows [columns, bytes], in the order of `storages`."""
    if name in ("float32", "float16", "bfloat16"):
        return [], [_plain(name, inputs, rows)]
    layout = LAYOUTS[name]
    blocks = rows.reshape(len(rows), -1, layout.size)
    if layout.weights > GROUP:
        return _fields_of_k(name, blocks)
    if name == "mxfp4":
        return [], [blocks[..., :1], _halves_first(blocks[..., 1:])]
    fields = [_as(np.uint16, blocks[..., at : at + 2]) for at in range(0, layout.halves, 2)]
    if name == "q8_0":
        return [], [*fields, _turned(_as(np.uint32, blocks[..., 2:]) ^ np.uint32(0x80808080), 8)]
    fields.append(_halves_first(blocks[..., -16:]))
    if name in ("q5_0", "q5_1"):
        upper = np.unpackbits(blocks[..., layout.halves : layout.halves + 4], axis=-1, bitorder="little")
        fields.append(_upper_words(_as(np.uint64, upper), 1))
    return [], fields


def _fields_of_k(name: str, blocks: Bytes) -> tuple[list[Field], list[Field]]:
    """`_fields` of the K storages, whose blocks [columns, headers, bytes] have the layout of ggml's block_q4_K etc."""
    count = len(blocks)
    if name == "q6_k":
        low, high = _nibble_words(blocks[..., :128].reshape(count, -1, 2, 64))
        words = np.concatenate([low, high], axis=-1).reshape(count, -1, 4)  # of 64 low halves, then of 64 high halves
        pairs = _as(np.uint64, blocks[..., 128:192]).reshape(count, -1, 2, 1, 4) >> _SHIFTS[::2]
        scales = blocks[..., 192:208].reshape(count, -1, 2)
        return [_as(np.uint16, blocks[..., 208:210])], [scales, words, _upper_words(pairs.reshape(count, -1, 4), 2)]
    low, high = _nibble_words(blocks[..., -128:].reshape(count, -1, 4, 32))
    words = np.concatenate([low, high], axis=-1).reshape(count, -1, 4)  # of 32 low halves, then of 32 high halves
    fields: list[Field] = [each.reshape(count, -1, 1) for each in _six_bits(blocks[..., 4:16])]
    fields.append(words)
    if name == "q5_k":
        fields.append(_upper_words((_as(np.uint64, blocks[..., None, 16:48]) >> _SHIFTS).reshape(count, -1, 4), 1))
    return [_as(np.uint16, blocks[..., at : at + 2]) for at in (0, 2)], fields


def _six_bits(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight scales and eight minima of six bits each, from 12 bytes (ggml's get_scale_min_k4)."""
    a, b, c = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([a & 63, (c & 15) | (a >> 6 << 4)], axis=-1)
    return scales, np.concatenate([b & 63, (c >> 4) | (b >> 6 << 4)], axis=-1)


def _in_bytes(rows: Bytes) -> Bytes:
    """Rows of iq4_nl as q8_0 with the same scales and values."""
    blocks = rows.reshape(len(rows), -1, 18)
    halves = blocks[..., 2:]
    values = _IQ4_NL[np.concatenate([halves & 15, halves >> 4], axis=-1)].view(np.uint8)
    return np.concatenate([blocks[..., :2], values], axis=-1).reshape(len(rows), -1)


def _plain(name: str, inputs: int, rows: Bytes) -> Field:
    values = np.ascontiguousarray(rows).view(np.uint32 if name == "float32" else np.uint16)
    if inputs % GROUP:
        values = np.pad(values, ((0, 0), (0, -inputs % GROUP)))
    kind = values.dtype if name != "bfloat16" else np.uint32  # an even input in the low half, the next input above it
    return values.view(kind).reshape(len(rows), padded(inputs, GROUP) // GROUP, -1)


def _as(kind: type[np.generic], packed: Bytes) -> Field:
    """Bytes [.., n] as little-endian numbers [.., n / bytes of one]."""
    return np.ascontiguousarray(packed).view(kind)


def _halves_first(packed: Bytes) -> Field:
    """Words of blocks [columns, groups, 16] whose low halves are the first 16 values and the high ones the others."""
    return np.concatenate(_nibble_words(packed), axis=-1)


def _nibble_words(packed: Bytes) -> tuple[Field, Field]:
    """Words [.., n / 8] of the low halves of bytes [.., n], and of the high ones, eight values to a word."""
    eights = _as(np.uint64, packed)
    return _nibbles_of(eights), _nibbles_of(eights >> np.uint64(4))


def _nibbles_of(eights: Field) -> Field:
    """The low halves of eight bytes as a word of eight values, turned."""
    found = eights & np.uint64(0x0F0F0F0F0F0F0F0F)
    found |= found >> np.uint64(4)
    found &= np.uint64(0x00FF00FF00FF00FF)
    return _turned(_joined(found), 4)


def _joined(found: Field) -> Field:
    """The low bytes of four numbers of 16 bits as a word; the bytes above them are zero."""
    found |= found >> np.uint64(8)
    found &= np.uint64(0x0000FFFF0000FFFF)
    found |= found >> np.uint64(16)
    return found.astype(np.uint32)


def _turned(words: Field, bits: int) -> Field:
    """Words of values of `bits` bits, rotated to the left."""
    turn = ROTATION[bits]
    turned: Field = words << np.uint32(turn) | words >> np.uint32(32 - turn)
    return turned


def _upper_words(eights: Field, bits: int) -> Field:
    """Words [columns, groups, bits] of the upper bits of values, in the order of `upper_place`.

    `eights` [columns, groups, 4] have in each byte a value's upper bits lowest, and anything above them.
    """
    # The k-th byte goes to place (k + ROTATION[4] / 4) of `byte_of`.
    turned = eights << np.uint64(2 * ROTATION[4]) | eights >> np.uint64(64 - 2 * ROTATION[4])
    turned &= np.uint64(0x0101010101010101 * (2**bits - 1))
    turned |= turned >> np.uint64(8 - bits)  # the two values that share a byte of the word
    turned &= np.uint64(0x0001000100010001 * (4**bits - 1))
    words = _joined(turned).reshape(*eights.shape[:2], bits, -1)
    found = words[..., 0].copy()
    for k in range(1, words.shape[-1]):
        found |= words[..., k] << np.uint32(upper_place(bits, 8 * k) - upper_place(bits, 0))
    return found

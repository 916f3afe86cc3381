"""The kernels of `kernels.cl` as functions of a device's memory, and matrices in it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.target.arrays import Bytes
from services.generation.target.blocks import BLOCK
from services.generation.target.gpu.device import Argument, Buffer, Device
from services.generation.target.gpu.source import ROWS
from services.generation.target.kernels.storages import GROUP, PANEL, packed_as
from services.generation.target.program.matrices import Matrix
from services.generation.target.rows import Part, Rows
from services.generation.target.unread import Best

LANES = 64  # work-items of a work-group; no bit depends on it
MOST_HEAD_DIM, PEAKS = 256, 1024  # as in kernels.cl
_INFINITY = 0x7F800000
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}  # of a cached number


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMatrix:
    """A packed matrix in a device's memory. `columns` are whole panels, `groups` of 32 inputs."""

    storage: str
    columns: int
    groups: int
    weights: Buffer
    bias: Buffer
    first: int = 0  # its first column in a layer's output

    @property
    def is_quantised(self) -> bool:
        return packed_as(self.storage).quantised


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """Rows of float32 numbers in a device's memory, `width` apart; those that nothing writes are 0."""

    buffer: Buffer
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class RoundedLines:
    """Rows of bytes, with the scale and the scaled sum of each group of 32."""

    bytes: Buffer
    scales: Buffer
    sums: Buffer


class Kernels:
    """Calls of kernels on a compiled device. Rows are those of strided `Lines`; sizes in elements."""

    def __init__(self, device: Device, lanes: int = LANES) -> None:
        self.device, self._lanes = device, lanes

    def upload(self, array: NDArray[Any]) -> Buffer:
        buffer = self.device.buffer(array.nbytes)
        self.device.write(buffer, array)
        return buffer

    def lines(self, rows: int, width: int) -> Lines:
        return Lines(self.upload(np.zeros((rows, width), np.float32)), width)

    def rounded_lines(self, rows: int, width: int) -> RoundedLines:
        groups = 4 * rows * (width // GROUP)
        return RoundedLines(*(self.device.buffer(size) for size in (rows * width, groups, groups)))

    def rounded_heads(self, rows: int, heads: int, dim: int) -> RoundedLines:
        """Rows of heads in bytes, each head a group; no sums."""
        return RoundedLines(*(self.device.buffer(size) for size in (rows * heads * dim, 4 * rows * heads, 0)))

    def matrix(self, matrix: Matrix) -> DeviceMatrix:
        packed = matrix.weights
        columns, groups = len(packed.panels) * PANEL, packed.padded_inputs // GROUP
        weights, bias = self.upload(packed.panels), self.upload(matrix.bias)
        return DeviceMatrix(packed.storage.name, columns, groups, weights, bias, matrix.first)

    def described(self, rows: Rows) -> NDArray[np.int32]:
        """The numbers of a pass as the kernels read them: starts, the stride of tables, and all parts."""
        header = len(Part) + 1
        starts = [start + header for start in rows.starts]
        return np.concatenate([np.array([*starts, rows.tables.shape[1]], np.int32), rows.numbers])

    def norm(
        self, x: Lines, weight: Buffer, y: Lines, rows: int, size: int, epsilon: float, *, at: int = 0, heads: int = 1,
        described: Buffer | None = None, first: int = 0,
    ) -> None:  # fmt: skip
        """y = RMSNorm of `heads` vectors of `size` numbers from column `at` on; if `described`, of the rows wanted in
        this pass, from the `first` on.
        """
        self.groups(
            "rms_norm", (heads, rows), x.buffer, weight, y.buffer, described or weight, _i(described is not None),
            _i(first), _i(size), _i(at), _i(x.width), _i(y.width), np.float32(epsilon),
        )  # fmt: skip

    def round(self, x: Lines, to: RoundedLines, rows: int, groups: int) -> None:
        """Rows of x in groups of 32, rounded to bytes."""
        self.items(
            "round_rows", groups, rows, x.buffer, to.bytes, to.scales, to.sums, _i(groups), _i(x.width),
            _i(GROUP * groups),
        )  # fmt: skip

    def linear(self, matrix: DeviceMatrix, x: Lines | RoundedLines, y: Lines, rows: int) -> None:
        """y = x W^T + b in the matrix's columns of y; with int8 if x is rounded."""
        inputs: list[Buffer]
        if isinstance(x, RoundedLines):
            kernel, inputs, stride = "int8", [x.bytes, x.scales, x.sums], []
        else:
            kernel, inputs, stride = "float", [x.buffer], [_i(x.width)]
        tile = 1 if rows == 1 else ROWS
        self.items(
            f"{kernel}_{matrix.storage}_{tile}", matrix.columns, -(-rows // tile), matrix.weights, matrix.bias, *inputs,
            y.buffer, _i(matrix.groups), _i(matrix.columns), _i(rows), *stride, _i(y.width), _i(matrix.first),
        )  # fmt: skip

    def gate(self, both: Lines, y: Lines, rows: int, size: int, activation: str) -> None:
        """y = activation(gate) * up; panels of gate and up alternate."""
        is_gelu = _i(activation == "gelu")
        self.items("gated", y.width, rows, both.buffer, y.buffer, _i(size), _i(y.width), is_gelu)

    def add(self, x: Lines, y: Lines, rows: int, size: int, factor: float = 1.0) -> None:
        """x += y * factor"""
        factors = np.float32(factor), _i(size), _i(x.width), _i(y.width)
        self.items("add_scaled", size, rows, x.buffer, y.buffer, *factors)

    def cap(self, x: Lines, rows: int, size: int, cap: float) -> None:
        self.items("cap_all", size, rows, x.buffer, np.float32(cap), _i(size), _i(x.width))

    def copy(self, x: Lines, y: Lines, rows: int, size: int, at: int) -> None:
        """y[:, at:] = x"""
        self.items("copy_columns", size, rows, x.buffer, y.buffer, _i(size), _i(x.width), _i(y.width), _i(at))

    def convolve_block(
        self, x: Lines, weight: Buffer, deltas: Lines, blocks: int, size: int, *, taps: int, group: int, block: int,
        at: int,
    ) -> None:  # fmt: skip
        """x = its convolution along the rows of each block, as `Operations.convolve_block` has it."""
        self.items(
            "convolve_block", size, blocks, x.buffer, weight, deltas.buffer, _i(size), _i(taps), _i(group), _i(block),
            _i(at), _i(x.width), _i(deltas.width),
        )  # fmt: skip

    def best(self, x: Lines, rows: int, size: int) -> list[Best | None]:
        """The best of each row's numbers; None for a row with one that is NaN or infinite."""
        groups = -(-size // PEAKS)
        found, peaks = self.device.buffer(16 * rows * groups), np.empty((rows, groups, 4), np.int32)
        self.groups("find_peaks", (groups, rows), x.buffer, found, _i(size), _i(x.width), _i(groups))
        self.device.read(found, peaks)
        return _best(peaks)

    def operations(self, operands: Sequence[Buffer], outputs: Sequence[Lines], count: int) -> None:
        """Each of `vectors.OPERATIONS` of four operands."""
        self.items("operations", count, 1, *operands, *(output.buffer for output in outputs), _i(count))

    def items(self, kernel: str, items: int, rows: int, *arguments: Argument) -> None:
        """Run a kernel with a work-item for each of `items` in every row."""
        self.groups(kernel, (-(-items // self._lanes), rows), *arguments)

    def groups(self, kernel: str, groups: tuple[int, int], *arguments: Argument) -> None:
        if 0 not in groups:  # else nothing is wanted, such as the logits of a prompt's first entries
            self.device.run(kernel, groups, self._lanes, *arguments)


def _best(peaks: NDArray[np.int32]) -> list[Best | None]:
    """The best of each row, by its groups' largest keys, their ids, next keys and largest magnitudes."""
    keys, ids, seconds, magnitudes = np.moveaxis(peaks, 2, 0)
    rows, group = np.arange(len(keys)), keys.argmax(axis=1)  # the first one, whose id is the lowest
    tokens, largest = ids[rows, group], keys[rows, group]
    keys[rows, group] = seconds[rows, group]
    both = np.stack([largest, keys.max(axis=1)])
    values, usable = np.copysign(np.abs(both).view(np.float32), both), magnitudes.max(axis=1) < _INFINITY
    found = zip(tokens.tolist(), *values.tolist(), usable, strict=True)
    return [Best(token, best, second) if row else None for token, best, second, row in found]


def _i(value: int) -> np.int32:
    return np.int32(value)


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Heads of a layer, and what a row sees: `window` and `chunk` in positions, 0 for all; `cap` of scores, or 0."""

    heads: int
    kv_heads: int
    dim: int
    window: int = 0
    chunk: int = 0
    cap: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class RotationTables:
    """By position: cosines and sines [positions, turned], factors of queries [positions]."""

    cosines: Buffer
    sines: Buffer
    scales: Buffer
    turned: int


class LayerCache:
    """Keys and values of a layer, [slots, kv_heads, dim], in int8 with scales [slots, kv_heads]; and attention."""

    def __init__(
        self, kernels: Kernels, form: str, shape: HeadShape, blocks: int, queries: RoundedLines | None
    ) -> None:
        """Allocate the memory. `queries`: memory for the queries of a pass in int8, which layers share."""
        self._kernels, self._form, self._shape, self._queries = kernels, form, shape, queries
        kinds = [_ITEM_BYTES[form] * shape.dim] * 2 + ([4, 4] if form == "int8" else [])
        self._lines = [shape.kv_heads * kind for kind in kinds]  # bytes of a slot in each part
        self._parts = [kernels.device.buffer(blocks * BLOCK * line) for line in self._lines]

    def keys_only(self) -> LayerCache:
        """The same memory, for lines of keys and values alone."""
        found = copy(self)
        found._shape = replace(self._shape, heads=0)
        return found

    def rotate(self, qkv: Lines, tables: RotationTables, described: Buffer, rows: int) -> None:
        """Rotate queries and keys in place, and scale queries."""
        shape, turned = self._shape, tables.turned
        heads = shape.heads + shape.kv_heads
        self._kernels.items(
            "rotate_heads", heads * (shape.dim - turned), rows, qkv.buffer, described, tables.cosines, tables.sines,
            tables.scales, _i(qkv.width), _i(shape.dim), _i(turned), _i(heads), _i(shape.heads),
        )  # fmt: skip

    def store(self, qkv: Lines, described: Buffer, rows: int) -> None:
        """Keys and values of rows to their slots; in int8 queries, too, to their memory."""
        shape, at = self._shape, self._shape.heads * self._shape.dim
        for place, first in enumerate((at, at + shape.kv_heads * shape.dim)):
            self._store(qkv, self._parts[place::2], described, rows, first, shape.kv_heads, cached=True)
        if self._queries:
            to = [self._queries.bytes, self._queries.scales]
            self._store(qkv, to, described, rows, 0, shape.heads, cached=False)

    def _store(
        self, qkv: Lines, to: Sequence[Buffer], described: Buffer, rows: int, first: int, heads: int, *, cached: bool
    ) -> None:
        is_bytes, dim = self._form == "int8", self._shape.dim
        sizes = (_i(heads), _i(dim)) if is_bytes else (_i(heads * dim),)
        self._kernels.items(
            f"store_{self._form}", heads if is_bytes else heads * dim, rows, qkv.buffer, *to, described, _i(cached),
            _i(qkv.width), _i(first), *sizes,
        )  # fmt: skip

    def attend(self, qkv: Lines, mixed: Lines, described: Buffer, rows: int, sinks: Buffer | None = None) -> None:
        """Attention of stored rows."""
        shape = self._shape
        if self._queries:
            keys, values, key_scales, value_scales = self._parts
            inputs = [self._queries.bytes, self._queries.scales, keys, key_scales, values, value_scales]
        else:
            inputs = [qkv.buffer, _i(qkv.width), *self._parts]
        self._kernels.groups(
            f"attend_{self._form}", (shape.heads, rows), *inputs, described, described if sinks is None else sinks,
            _i(sinks is not None), mixed.buffer, _i(mixed.width), _i(shape.heads), _i(shape.kv_heads), _i(shape.dim),
            _i(shape.window), _i(shape.chunk), np.float32(shape.cap),
        )  # fmt: skip

    def move(self, places: Buffer, count: int) -> None:
        """Copy `count` slots in their order; places [2, count], sources first."""
        for part, line in zip(self._parts, self._lines, strict=True):
            self._kernels.items("move_lines", line, 1, part, places, _i(count), _i(line))

    def block(self, number: int) -> list[Bytes]:
        """A block's bytes of each part."""
        found = [np.empty(BLOCK * line, np.uint8) for line in self._lines]
        for part, array in zip(self._parts, found, strict=True):
            self._kernels.device.read(part, array, number * array.nbytes)
        return found

    def fill(self, number: int, content: Bytes) -> int:
        """Write a block from the beginning of `content`; returns the number of its bytes."""
        at = 0
        for part, size in zip(self._parts, (BLOCK * line for line in self._lines), strict=True):
            self._kernels.device.write(part, content[at : at + size], number * size)
            at += size
        return at

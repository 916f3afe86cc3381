"""Decoder layers on a device, of targets and of heads: weights in its memory, and the memory of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from services.generation.target.arrays import Float32
from services.generation.target.config.layer_specs import LayerSizes, LayerSpec
from services.generation.target.gpu.device import Buffer
from services.generation.target.gpu.kernels import (
    DeviceMatrix,
    HeadShape,
    Kernels,
    LayerCache,
    Lines,
    RotationTables,
)
from services.generation.target.kernels.storages import GROUP, PANEL, padded
from services.generation.target.program.layer import Layer
from services.generation.target.rows import Rows

MOST_ROWS = 256  # of a pass; more rows are computed in several passes, earlier rows first


class Around(Protocol):
    """Operations around attention or an MLP, as `operations.Around` has them."""

    def before(self, x: Lines, count: int) -> None:
        """Change the part's normed input `x`."""

    def after(self, update: Lines, count: int) -> None:
        """Change the part's output before it is added to the stream."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceLayer:
    """A decoder layer in a device's memory; norms that it lacks are None."""

    spec: LayerSpec
    attention_norm: Buffer | None
    qkv: list[DeviceMatrix]
    head_norms: list[Buffer]
    output: DeviceMatrix
    after_attention: Buffer | None
    mlp_norm: Buffer | None
    gate_up: DeviceMatrix
    down: DeviceMatrix
    after_mlp: Buffer | None
    tables: RotationTables
    cache: LayerCache
    around: tuple[Around | None, Around | None] = None, None  # attention, and the MLP

    @property
    def matrices(self) -> list[DeviceMatrix]:
        return [*self.qkv, self.output, self.gate_up, self.down]


class LayerPasses:
    """Passes of layers of one size; their residual stream is `x` [MOST_ROWS, hidden]."""

    def __init__(
        self, kernels: Kernels, sizes: LayerSizes, cached: str, blocks: int, *, is_int8: bool, widest: int = 0
    ) -> None:  # fmt: skip
        """`cached`: the type of keys and values, in `blocks` of each layer. `widest`: inputs of a matrix beside the
        layers' own. Raises DeviceUnavailable if the memory is full.
        """
        self._kernels, self._sizes, self._cached, self._blocks = kernels, sizes, cached, blocks
        self._is_int8, self._positions = is_int8, 0
        hidden, heads = sizes.hidden_size, sizes.heads * sizes.head_dim
        inner = padded(sizes.intermediate_size, PANEL)
        self.x, self.normed, self._update, self._mixed = map(self.lines, (hidden, hidden, hidden, heads))
        self._qkv = self.lines(heads + 2 * sizes.kv_heads * sizes.head_dim)
        self._gate_up, self._inner = self.lines(2 * inner), self.lines(inner)
        self._rounded = kernels.rounded_lines(MOST_ROWS, padded(max(hidden, heads, inner, widest), GROUP))
        own = cached == "int8"
        self._queries = kernels.rounded_heads(MOST_ROWS, sizes.heads, sizes.head_dim) if own else None

    def lines(self, width: int, rows: int = MOST_ROWS) -> Lines:
        """Lines of zeros."""
        return self._kernels.lines(rows, padded(width, PANEL))

    def tables(self, cosines: Float32, sines: Float32, scales: Float32) -> RotationTables:
        """The rotation of layers, at as many positions as their other tables have."""
        upload, self._positions = self._kernels.upload, len(scales)
        return RotationTables(upload(cosines), upload(sines), upload(scales), cosines.shape[1])

    def load(self, layer: Layer, tables: RotationTables) -> DeviceLayer:
        """Copy a layer to the device, with an empty cache."""
        spec, kernels = layer.spec, self._kernels
        assert layer.mlp is not None
        shape = HeadShape(spec.heads, spec.kv_heads, spec.head_dim, spec.window, spec.chunk, spec.cap)
        attention_norm, after_attention, mlp_norm, after_mlp = (
            None if norm is None else kernels.upload(norm)
            for norm in (layer.attention_norm, layer.after_attention, layer.mlp_norm, layer.after_mlp)
        )
        return DeviceLayer(
            spec=spec,
            attention_norm=attention_norm,
            qkv=[kernels.matrix(matrix) for matrix in layer.qkv],
            head_norms=[kernels.upload(norm) for norm in layer.head_norms],
            output=kernels.matrix(layer.output),
            after_attention=after_attention,
            mlp_norm=mlp_norm,
            gate_up=kernels.matrix(layer.mlp.gate_up),
            down=kernels.matrix(layer.mlp.down),
            after_mlp=after_mlp,
            tables=tables,
            cache=LayerCache(kernels, self._cached, shape, self._blocks, self._queries),
        )

    def keys_only(self, layer: DeviceLayer, shape: Layer) -> DeviceLayer:
        """A layer of keys and values alone in the same cache; `shape` has its matrices."""
        qkv, norms = [self._kernels.matrix(matrix) for matrix in shape.qkv], layer.head_norms
        return replace(layer, spec=shape.spec, qkv=qkv, head_norms=norms, cache=layer.cache.keys_only())

    def described(self, rows: Rows) -> Buffer:
        """A pass as the kernels read it. Raises ValueError if a row is at, or sees, a position without a rotation."""
        last = max(rows.positions.max(initial=0), rows.lengths.max(initial=1) - 1)
        if last >= self._positions:
            raise ValueError(f"a row at position {last}; expected 0 to {self._positions - 1}")
        return self._kernels.upload(self._kernels.described(rows))

    def compute(self, layer: DeviceLayer, described: Buffer, count: int) -> None:
        """The stream of `count` rows after a layer."""
        x = self.normed_stream(layer.attention_norm, count)
        if around := layer.around[0]:
            around.before(x, count)
        self.project(layer, x, described, count)
        self.finish(layer, described, count)

    def project(self, layer: DeviceLayer, x: Lines, described: Buffer, count: int) -> None:
        """Compute queries, and store keys and values."""
        spec, qkv, at = layer.spec, self._qkv, 0
        self.linear(layer.qkv, x, qkv, count)
        for norm, heads in zip(layer.head_norms, (spec.heads, spec.kv_heads), strict=False):
            epsilon = self._sizes.norm_epsilon
            if heads:
                self._kernels.norm(qkv, norm, qkv, count, spec.head_dim, epsilon, at=at, heads=heads)
            at += heads * spec.head_dim
        layer.cache.rotate(qkv, layer.tables, described, count)
        layer.cache.store(qkv, described, count)

    def finish(self, layer: DeviceLayer, described: Buffer, count: int) -> None:
        """Attention of the queries and the MLP, added to the stream."""
        attention, mlp = layer.around
        layer.cache.attend(self._qkv, self._mixed, described, count)
        self._add(layer.output, self._mixed, layer.after_attention, layer.spec.residual, count, attention)
        x = self.normed_stream(layer.mlp_norm, count)
        if mlp:
            mlp.before(x, count)
        self.linear([layer.gate_up], x, self._gate_up, count)
        self._kernels.gate(self._gate_up, self._inner, count, layer.spec.down[0].inputs, layer.spec.activation)
        self._add(layer.down, self._inner, layer.after_mlp, layer.spec.residual, count, mlp)

    def norm(
        self, x: Lines, weight: Buffer, y: Lines, count: int, *, size: int = 0, at: int = 0,
        described: Buffer | None = None, first: int = 0,
    ) -> None:  # fmt: skip
        """y = the norm of `size` numbers of x from column `at` on, by default of the stream's size; of wanted rows if
        `described`.
        """
        sizes = self._sizes
        self._kernels.norm(
            x, weight, y, count, size or sizes.hidden_size, sizes.norm_epsilon, at=at, described=described, first=first
        )

    def linear(self, matrices: Sequence[DeviceMatrix], x: Lines, y: Lines, count: int) -> None:
        """Outputs of matrices with the same inputs side by side; x is rounded once."""
        rounded = self._is_int8 and any(matrix.is_quantised for matrix in matrices)
        if rounded:
            self._kernels.round(x, self._rounded, count, matrices[0].groups)
        for matrix in matrices:
            self._kernels.linear(matrix, self._rounded if rounded and matrix.is_quantised else x, y, count)

    def normed_stream(self, norm: Buffer | None, count: int) -> Lines:
        """The input of a part of a layer."""
        if norm is None:
            return self.x
        self.norm(self.x, norm, self.normed, count)
        return self.normed

    def _add(
        self, matrix: DeviceMatrix, x: Lines, after: Buffer | None, factor: float, count: int, around: Around | None
    ) -> None:  # fmt: skip
        """Add factor * matrix(x), or its norm, to the stream."""
        self.linear([matrix], x, self._update, count)
        if around:
            around.after(self._update, count)
        if after is not None:
            self.norm(self._update, after, self._update, count)
        self._kernels.add(self.x, self._update, count, self._sizes.hidden_size, factor)

    def write(self, lines: Lines, values: Float32) -> None:
        """Copy rows to the beginning of lines; the rest of their columns is 0."""
        self._kernels.device.write(lines.buffer, whole_lines(values, lines.width))

    def read(self, lines: Lines, rows: int, size: int) -> Float32:
        found = np.empty((rows, lines.width), np.float32)
        self._kernels.device.read(lines.buffer, found)
        return found[:, :size]


def whole_lines(values: Float32, width: int) -> Float32:
    """Rows with columns of zeros up to `width`."""
    whole = np.zeros((len(values), width), np.float32)
    whole[:, : values.shape[1]] = values
    return whole

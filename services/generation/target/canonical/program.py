"""A pass as a program: a record for each operation of each layer, which the team runs without coming back to Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.target.canonical import attention, compilation, linear
from services.generation.target.canonical.adapter_updates import AdapterUpdates
from services.generation.target.canonical.cached import Cached
from services.generation.target.canonical.layer import Layer
from services.generation.target.canonical.matrices import Matrix
from services.generation.target.canonical.packing import on_huge_pages
from services.generation.target.canonical.records import FIELDS, count_of, record_of
from services.generation.target.canonical.rows import MOST_RANK
from services.generation.target.canonical.storages import GROUP, PANEL, padded
from services.generation.target.config import TargetConfig

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]


class Buffers:
    """What a pass of up to `rows` rows works in. Lines begin at borders of 64 bytes; what fills them up is zero."""

    def __init__(self, config: TargetConfig, rows: int, members: int, blocks: int) -> None:
        heads, dim = config.heads, padded(config.head_dim, attention.LANES)
        sharing = heads // config.kv_heads
        inner = padded(config.intermediate_size, PANEL)
        self.rows, self.members, self.dim = rows, members, dim

        def lines(size: int) -> Float32:
            size = padded(size, PANEL)
            return on_huge_pages(4 * rows * size).view(np.float32).reshape(rows, size)

        self.x, self.normed, self.update = (lines(config.hidden_size) for _ in range(3))
        self.qkv = lines((heads + 2 * config.kv_heads) * config.head_dim)
        self.queries = on_huge_pages(4 * rows * heads * dim).view(np.float32).reshape(rows, heads * dim)
        self.mixed = lines(heads * config.head_dim)
        self.gate_up, self.inner = lines(2 * inner), lines(inner)
        widest = max(config.hidden_size, heads * config.head_dim, config.intermediate_size)
        attending = attention.scratch_bytes(sharing, dim)
        adapting = 4 * (MOST_RANK + padded(max(2 * inner, self.qkv.shape[1]), PANEL))
        self.scratch_size = padded(max(linear.scratch_bytes(widest), attending, adapting), 4096)
        self.scratch = on_huge_pages(self.scratch_size * members)
        split = attention.most_split(members) * (blocks + 1) * sharing * attention.result_bytes(dim)
        self.partial = on_huge_pages(split)

    @property
    def own(self) -> dict[str, object]:
        """The fields of a record that name a member's scratch."""
        return {"scratch": self.scratch, "scratch_size": self.scratch_size}


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """All of a model that a program points to. keys, values: the cache, [layers, ...], in the form `cached`."""

    config: TargetConfig
    cached: Cached
    layers: Sequence[Layer]
    embedding: Matrix
    norm: Float32
    head: Matrix
    cosines: Float32
    sines: Float32
    keys: NDArray[Any]
    values: NDArray[Any]


class Program:
    """The records of a pass with some features, and with or without adapters."""

    def __init__(self, parts: Parts, buffers: Buffers, feature_layers: Sequence[int], adapted: bool) -> None:
        self._parts, self._buffers, self._adapted = parts, buffers, adapted
        self._kernels = compilation.kernels("rows") | compilation.kernels(f"cache_{parts.cached.name}")
        self._records: list[Int64] = []
        self._features: list[tuple[int, int]] = []  # (record, column) of each layer's copy
        self._wanted_features = tuple(feature_layers)
        self._write()
        self.records = np.ascontiguousarray(np.stack(self._records))

    def give(self, logits: Float32, features: Float32) -> None:
        """Say where logits [wanted, padded vocabulary] and features [rows, layers * hidden] go."""
        places = FIELDS["linear"].index("y") + 2, FIELDS["linear"].index("y_stride") + 2
        self.records[-1, places] = logits.ctypes.data, logits.strides[0] if len(logits) else 0
        places = FIELDS["copy"].index("out") + 2, FIELDS["copy"].index("out_stride") + 2
        for record, column in self._features:
            self.records[record, places] = features.ctypes.data + 4 * column, features.strides[0]

    def _write(self) -> None:
        parts, buffers = self._parts, self._buffers
        self._embed()
        for number, layer in enumerate(parts.layers):
            self._copy(number)
            self._norm(buffers.normed, layer.attention_norm)
            self._attention(layer, number)
            self._norm(buffers.normed, layer.mlp_norm)
            self._mlp(layer)
        self._copy(len(parts.layers))
        self._norm(buffers.normed, parts.norm, wanted=True)
        self._linear(parts.head, buffers.normed, np.empty((0, 0), np.float32), count="wanted")

    def _attention(self, layer: Layer, number: int) -> None:
        config, buffers, parts = self._parts.config, self._buffers, self._parts
        for last, matrix in zip([False] * (len(layer.qkv) - 1) + [True], layer.qkv, strict=True):
            self._linear(matrix, buffers.normed, buffers.qkv, barrier=last)
        self._low_rank(layer.updates[0], buffers.normed, buffers.qkv)
        shape: Mapping[str, object] = {
            "heads": config.heads, "kv_heads": config.kv_heads, "dim": config.head_dim, "padded": buffers.dim,
            "queries": buffers.queries, "keys": parts.keys[number], "values": parts.values[number],
        }  # fmt: skip
        norms = dict(zip(("query_norm", "key_norm"), layer.head_norms, strict=False))
        self._add(
            "rotate", {**shape, **norms, "qkv": buffers.qkv, "qkv_stride": buffers.qkv.strides[0],
            "cosines": parts.cosines, "sines": parts.sines, "epsilon": config.norm_epsilon,
            "scale": config.head_dim**-0.5},
        )  # fmt: skip
        attend = {
            **shape, **buffers.own, "window": layer.spec.window, "mixed": buffers.mixed,
            "mixed_stride": buffers.mixed.strides[0], "partial": buffers.partial,
        }  # fmt: skip
        self._add("attend", attend)
        self._add("attend", attend, kernel="combine")
        self._residual(layer.output, layer.updates[1], buffers.mixed)

    def _mlp(self, layer: Layer) -> None:
        buffers, matrix = self._buffers, layer.gate_up
        adapted = self._adapted and layer.updates[2].any
        self._linear(matrix, buffers.normed, buffers.gate_up, unit=2, barrier=adapted)
        self._low_rank(layer.updates[2], buffers.normed, buffers.gate_up)
        self._add(
            "activate", {"gate_up": buffers.gate_up, "gate_up_stride": buffers.gate_up.strides[0],
            "out": buffers.inner, "out_stride": buffers.inner.strides[0], "panels": matrix.panels, "unit": 2},
            kernel=f"activate_{layer.spec.activation}",
        )  # fmt: skip
        self._residual(layer.down, layer.updates[3], buffers.inner)

    def _residual(self, matrix: Matrix, updates: AdapterUpdates, x: Float32) -> None:
        """x of the stream += matrix(x), with the updates of adapters added first."""
        buffers = self._buffers
        self._linear(matrix, x, buffers.update, barrier=self._adapted and updates.any)
        self._low_rank(updates, x, buffers.update)
        stream = {"x": buffers.x, "x_stride": buffers.x.strides[0], "size": self._parts.config.hidden_size}
        own = {"panels": matrix.panels, "unit": 1}
        self._add("add", {**stream, **own, "y": buffers.update, "y_stride": buffers.update.strides[0]})

    def _embed(self) -> None:
        buffers, matrix = self._buffers, self._parts.embedding
        record = embedding_record(matrix, buffers.x, self._parts.config.hidden_size, buffers.own)
        self._records.append(record)

    def _norm(self, out: Float32, weight: Float32, wanted: bool = False) -> None:
        config, x = self._parts.config, self._buffers.x
        self._add(
            "norm", {"x": x, "x_stride": x.strides[0], "out": out, "out_stride": out.strides[0], "weight": weight,
            "size": config.hidden_size, "epsilon": config.norm_epsilon, "index": int(wanted),
            "count": count_of("wanted" if wanted else "rows")},
        )  # fmt: skip

    def _linear(
        self, matrix: Matrix, x: Float32, y: Float32, *, count: str = "rows", unit: int = 1, barrier: bool = True
    ) -> None:
        record = linear_record(matrix, x, y, count, unit, self._buffers.own, barrier)
        self._records.append(record)

    def _low_rank(self, updates: AdapterUpdates, x: Float32, y: Float32) -> None:
        if self._adapted and updates.any:
            self._add(
                "low_rank", {**self._buffers.own, "x": x, "x_stride": x.strides[0], "y": y, "y_stride": y.strides[0],
                "parts": updates.parts, "adapter_parts": updates.adapter_parts},
            )  # fmt: skip

    def _copy(self, layer: int) -> None:
        """The stream after `layer` layers, where it is wanted as a feature."""
        size, x = self._parts.config.hidden_size, self._buffers.x
        for place, wanted in enumerate(self._wanted_features):
            if wanted == layer:
                self._features.append((len(self._records), place * size))
                self._add("copy", {"x": x, "x_stride": x.strides[0], "size": size}, barrier=False)

    def _add(self, operation: str, values: Mapping[str, object], *, kernel: str = "", barrier: bool = True) -> None:
        address = self._kernels[kernel or operation]
        self._records.append(record_of(operation, address, values, barrier=barrier))


def linear_record(
    matrix: Matrix, x: Float32, y: Float32, count: str, unit: int, own: Mapping[str, object], barrier: bool
) -> Int64:
    """y[:, first:] = x W^T + b."""
    weights = matrix.weights
    place = y.ctypes.data + 4 * matrix.first if len(y) else 0
    values = {
        **own, "weights": weights.panels, "x": x, "x_stride": x.strides[0], "y": place,
        "y_stride": y.strides[0] if len(y) else 0, "bias": matrix.bias, "groups": weights.padded_inputs // GROUP,
        "panels": matrix.panels, "unit": unit, "count": count_of(count),
    }  # fmt: skip
    kernel = compilation.kernels(f"linear_{weights.storage.name}")["linear"]
    return record_of("linear", kernel, values, barrier=barrier)


def embedding_record(matrix: Matrix, x: Float32, size: int, own: Mapping[str, object]) -> Int64:
    """x[row] = the embedding of the pass's token of that row."""
    weights = matrix.weights
    kernel = compilation.kernels(f"linear_{weights.storage.name}")["embed"]
    values = {
        **own, "weights": weights.panels, "groups": weights.padded_inputs // GROUP, "x": x, "x_stride": x.strides[0],
        "size": size, "factor": 1.0,
    }  # fmt: skip
    return record_of("embed", kernel, values)

"""A pass as a program: a record for each operation of each layer, all of which the team executes in one call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.generation.target.arrays import Float32, Int64
from services.generation.target.config.config import TargetConfig
from services.generation.target.config.layer_specs import LAYER_EMBEDDING, LAYER_NORM, LAYER_PROJECTION
from services.generation.target.config.rope import inverse_root
from services.generation.target.kernels.records import bind
from services.generation.target.program.buffers import Buffers, Cache
from services.generation.target.program.layer import Layer
from services.generation.target.program.matrices import Matrix, Pack, Read, matrix_of, vector
from services.generation.target.program.operations import NOWHERE, Operations


@dataclass(frozen=True, slots=True, eq=False)
class LayerInputsTable:
    """Weights of all layers' inputs: a table by token, and a projection of the token's embedding."""

    embedding: Matrix
    projection: Matrix
    norm: Float32

    @classmethod
    def load(cls, read: Read, pack: Pack) -> LayerInputsTable:
        """Read and pack the weights. Raises WeightsInvalid for weights that are NaN or infinite."""
        embedding, projection = (matrix_of(read(name), pack=pack) for name in (LAYER_EMBEDDING, LAYER_PROJECTION))
        return cls(embedding, projection, vector(read, LAYER_NORM))


class LayerInputLines:
    """Lines of a pass: `inputs` and `table`, [rows, layers * size], and `gated`, [rows, size]."""

    def __init__(self, config: TargetConfig, buffers: Buffers) -> None:
        self.size = config.layer_inputs
        whole = config.layers * self.size
        self.inputs, self.table = buffers.lines(whole), buffers.lines(whole)
        self.gated = buffers.lines(self.size)

    def of(self, layer: int) -> Float32:
        """The inputs of a layer, [rows, size]."""
        return self.inputs[:, layer * self.size : (layer + 1) * self.size]


def write_layer_inputs(
    operations: Operations, table: LayerInputsTable, lines: LayerInputLines, config: TargetConfig, buffers: Buffers
) -> None:
    """Emit the operations that compute the inputs of all layers from the embeddings in `buffers.x`."""
    whole = config.layers * lines.size
    factor = math.sqrt(config.layer_inputs)
    operations.embed(table.embedding, lines.table, whole, factor)
    operations.linear(table.projection, buffers.x, lines.inputs)
    operations.scale(lines.inputs, inverse_root(config.hidden_size), whole)
    for layer in range(config.layers):
        operations.norm(lines.of(layer), lines.of(layer), table.norm)
    operations.add(lines.inputs, lines.table, whole)
    operations.scale(lines.inputs, math.sqrt(0.5), whole)


@dataclass(frozen=True, slots=True, eq=False)
class ModelWeights:
    """A model's packed weights and its cache, to which programs point."""

    config: TargetConfig
    layers: Sequence[Layer]
    embedding: Matrix
    norm: Float32
    head: Matrix
    cache: Cache
    arithmetic: str = "float32"  # of linear layers
    inputs: LayerInputsTable | None = None


class Program:
    """The records of a pass with some features, and with or without adapters."""

    def __init__(self, parts: ModelWeights, buffers: Buffers, feature_layers: Sequence[int], adapted: bool) -> None:
        self._parts, self._buffers = parts, buffers
        self._wanted_features = tuple(feature_layers)
        self._features: list[tuple[int, int]] = []  # (record, column) of each layer's copy
        operations = Operations(parts.config, buffers, parts.cache, adapted=adapted, arithmetic=parts.arithmetic)
        self._write(operations)
        self.records, self._keeps_alive = np.stack(operations.records), operations.keeps_alive
        self.folding = _folding(parts, buffers)

    def bind_outputs(self, logits: Float32, features: Float32) -> None:
        """Set the arrays for logits [wanted, padded vocabulary] and features [rows, layers * hidden]."""
        for record, operation in self._last:
            bind(self.records[record], operation, "y", logits)
        for record, column in self._features:
            bind(self.records[record], "copy", "out", features, column)

    def _write(self, operations: Operations) -> None:
        parts, buffers = self._parts, self._buffers
        operations.embed(parts.embedding, buffers.x, parts.config.hidden_size, parts.config.embedding_scale)
        lines = self._inputs(operations, parts.inputs) if parts.inputs else None
        for number, layer in enumerate(parts.layers):
            self._copy(operations, number)
            operations.project(layer, number, operations.norm_input(layer.attention_norm))
            operations.attend(layer, number)
            operations.mlp(layer)
            operations.inputs(layer, *((lines.of(number), lines.gated) if lines else (NOWHERE, NOWHERE)))
        self._copy(operations, len(parts.layers))
        operations.norm(buffers.x, buffers.normed, parts.norm, wanted=True)
        self._last = [(len(operations.records), "linear")]  # operations that write logits
        operations.linear(parts.head, buffers.normed, NOWHERE, count="wanted")
        if parts.config.logit_cap:
            self._last.append((len(operations.records), "cap"))
            operations.cap(parts.head, NOWHERE, parts.config.logit_cap)

    def _inputs(self, operations: Operations, table: LayerInputsTable) -> LayerInputLines:
        lines = LayerInputLines(self._parts.config, self._buffers)
        self._lines = lines  # keeps alive the lines to which records point
        write_layer_inputs(operations, table, lines, self._parts.config, self._buffers)
        return lines

    def _copy(self, operations: Operations, layer: int) -> None:
        """Copy the stream after `layer` layers for each time that it is wanted as a feature."""
        size = self._parts.config.hidden_size
        for place, wanted in enumerate(self._wanted_features):
            if wanted == layer:
                self._features.append((len(operations.records), place * size))
                operations.copy(self._buffers.x, NOWHERE, size, barrier=False)


def _folding(parts: ModelWeights, buffers: Buffers) -> Int64 | None:
    """Records that fold the steps of all layers' states, for a pass without rows."""
    operations = Operations(parts.config, buffers, parts.cache)
    for number, layer in enumerate(parts.layers):
        if layer.state is not None:
            operations.fold(layer.state, number)
    return np.stack(operations.records) if operations.records else None

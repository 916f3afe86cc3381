"""Inputs that every layer has of every token (Gemma 4): `docs/numerics.md`, Inputs of layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.generation.target.canonical.program.buffers import Buffers
from services.generation.target.canonical.program.matrices import Matrix, Read, matrix_of, vector
from services.generation.target.canonical.program.operations import Operations
from services.generation.target.config.config import TargetConfig
from services.generation.target.config.layer_specs import LAYER_EMBEDDING, LAYER_NORM, LAYER_PROJECTION
from services.generation.target.roots import inverse_root, root

Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class LayerInputsTable:
    """Parts of the inputs: a table of all layers' by token, and a projection of the token's embedding."""

    embedding: Matrix
    projection: Matrix
    norm: Float32

    @classmethod
    def load(cls, read: Read) -> LayerInputsTable:
        """Raises WeightsInvalid for weights that are NaN or infinite."""
        return cls(matrix_of(read(LAYER_EMBEDDING)), matrix_of(read(LAYER_PROJECTION)), vector(read, LAYER_NORM))


class LayerInputLines:
    """Lines of a pass: `inputs` [rows, layers * size], what is added to them, and what a layer works in."""

    def __init__(self, config: TargetConfig, buffers: Buffers) -> None:
        self.size = config.layer_inputs
        whole = config.layers * self.size
        self.inputs, self.table = buffers.lines(whole), buffers.lines(whole)
        self.gated = buffers.lines(self.size)

    def of(self, layer: int) -> Float32:
        """[rows, size]"""
        return self.inputs[:, layer * self.size : (layer + 1) * self.size]


def write_layer_inputs(
    operations: Operations, table: LayerInputsTable, lines: LayerInputLines, config: TargetConfig, buffers: Buffers
) -> None:
    """Operations that make the inputs of all layers, of the embeddings in `buffers.x`."""
    whole = config.layers * lines.size
    factor = root(config.layer_inputs)
    operations.embed(table.embedding, lines.table, whole, factor)
    operations.linear(table.projection, buffers.x, lines.inputs)
    operations.scale(lines.inputs, inverse_root(config.hidden_size), whole)
    for layer in range(config.layers):
        operations.norm(lines.of(layer), lines.of(layer), table.norm)
    operations.add(lines.inputs, lines.table, whole)
    operations.scale(lines.inputs, root(0.5), whole)

"""Records of operations that need no layer: a linear layer, embeddings, and where outputs of a pass go."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from services.generation.target.canonical.kernels import compilation
from services.generation.target.canonical.kernels.records import FIELDS, count_of, record_of
from services.generation.target.canonical.kernels.storages import GROUP
from services.generation.target.canonical.program.matrices import Matrix

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]


def linear_record(
    matrix: Matrix, x: Float32, y: Float32, count: str, unit: int, own: Mapping[str, object], barrier: bool,
    arithmetic: str = "float32",
) -> Int64:  # fmt: skip
    """y[:, first:] = x W^T + b."""
    weights = matrix.weights
    place = y.ctypes.data + 4 * matrix.first if len(y) else 0
    values = {
        **own, "weights": weights.panels, "x": x, "x_stride": x.strides[0], "y": place,
        "y_stride": y.strides[0] if len(y) else 0, "bias": matrix.bias, "groups": weights.padded_inputs // GROUP,
        "panels": matrix.panels, "unit": unit, "count": count_of(count),
    }  # fmt: skip
    kernel = compilation.kernels(compilation.linear_module(weights.storage.name, arithmetic))["linear"]
    return record_of("linear", kernel, values, barrier=barrier)


def embedding_record(matrix: Matrix, x: Float32, size: int, own: Mapping[str, object], factor: float = 1.0) -> Int64:
    """x[row] = the embedding of the pass's token of that row, times a factor."""
    weights = matrix.weights
    kernel = compilation.kernels(f"linear_{weights.storage.name}")["embed"]
    values = {
        **own, "weights": weights.panels, "groups": weights.padded_inputs // GROUP, "x": x, "x_stride": x.strides[0],
        "size": size, "factor": factor,
    }  # fmt: skip
    return record_of("embed", kernel, values)


def give(record: Int64, operation: str, field: str, array: Float32, column: int = 0) -> None:
    """Let a field of a record, and the stride beside it, be an array's from a column on."""
    names = FIELDS[operation]
    record[names.index(field) + 2] = array.ctypes.data + array.itemsize * column
    record[names.index(f"{field}_stride") + 2] = array.strides[0] if len(array) else 0

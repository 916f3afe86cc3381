"""Linear layers of a model in packed form: modules that read the same input become one matrix where they can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.generation.target.canonical.kernels.storages import PANEL, padded
from services.generation.target.canonical.program.packing import PackedWeights, pack
from services.generation.target.config.layer_specs import ModuleSpec
from services.generation.target.files.stored_tensor import StoredTensor

Float32 = NDArray[np.float32]
Read = Callable[[str], StoredTensor]


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """Packed weights and bias [padded columns] that give the columns of a layer's output from `first` on."""

    weights: PackedWeights
    bias: Float32
    first: int = 0

    @property
    def panels(self) -> int:
        return len(self.weights.panels)


def matrix_of(tensor: StoredTensor, bias: Float32 | None = None, order: NDArray[np.int64] | None = None) -> Matrix:
    """The weights of one module [out, in] as they are stored. Raises WeightsInvalid for NaN and infinity."""
    tensor.check_finite()
    weights = pack(tensor.storage, tensor.shape[1], tensor.data, order)
    whole = np.zeros(len(weights.panels) * PANEL, np.float32)
    if bias is not None:
        whole[: len(bias)] = bias
    return Matrix(weights, whole)


def side_by_side(modules: Sequence[ModuleSpec], prefix: str, read: Read) -> list[Matrix]:
    """The modules' outputs one after another: one matrix for neighbours in the same storage.

    A matrix writes whole panels. Where one would not end with a panel, all are widened to float32 and become one.
    """
    tensors = [_weight(module, prefix, read) for module in modules]
    storages = [tensor.storage for tensor in tensors]
    if len(set(storages)) > 1 and any(module.outputs % PANEL for module in modules[:-1]):
        tensors = [_widened(tensor) for tensor in tensors]
    matrices, first, start = [], 0, 0
    for end in range(1, len(modules) + 1):
        if end < len(modules) and tensors[end].storage == tensors[start].storage:
            continue
        some = modules[start:end]
        biases = np.concatenate([_bias(module, prefix, read) for module in some])
        joined = matrix_of(_joined(tensors[start:end]), biases)
        matrices.append(Matrix(joined.weights, joined.bias, first))
        first, start = first + sum(module.outputs for module in some), end
    return matrices


def alternating(modules: Sequence[ModuleSpec], prefix: str, read: Read) -> Matrix:
    """A panel of the first of two modules of one size, a panel of the second, and so on; filled up to whole panels.

    One module is two that were put together.
    """
    tensors = [_weight(module, prefix, read) for module in modules]
    if len({tensor.storage for tensor in tensors}) > 1:
        tensors = [_widened(tensor) for tensor in tensors]
    size = sum(module.outputs for module in modules) // 2
    columns = np.full((2, padded(size, PANEL)), -1, np.int64)
    columns[0, :size], columns[1, :size] = np.arange(size), np.arange(size, 2 * size)
    order = columns.reshape(2, -1, PANEL).swapaxes(0, 1).reshape(-1)
    biases = np.concatenate([*(_bias(module, prefix, read) for module in modules), np.zeros(1, np.float32)])
    return matrix_of(_joined(tensors), biases[order], order)  # order -1 is the zero at the end


def vector(read: Read, name: str, offset: float = 0.0, rows: Sequence[range] = ()) -> Float32:
    """A vector of weights or its named `rows`, each with `offset` added. Raises WeightsInvalid for NaN and infinity."""
    tensor = read(name).part(rows) if rows else read(name)
    tensor.check_finite()
    values = np.array(tensor.values(), np.float32)  # a copy: a view would keep the whole file mapped
    return values + np.float32(offset) if offset else values


def _weight(module: ModuleSpec, prefix: str, read: Read) -> StoredTensor:
    tensor = read(f"{prefix}{module.name}.weight")
    return tensor.part(module.rows) if module.rows else tensor


def _bias(module: ModuleSpec, prefix: str, read: Read) -> Float32:
    if not module.bias:
        return np.zeros(module.outputs, np.float32)
    return vector(read, f"{prefix}{module.name}.bias", rows=module.rows)


def _joined(tensors: Sequence[StoredTensor]) -> StoredTensor:
    if len(tensors) == 1:
        return tensors[0]
    data = np.concatenate([tensor.data for tensor in tensors])
    return StoredTensor(
        " or ".join(t.name for t in tensors), tensors[0].storage, (len(data), tensors[0].shape[1]), data
    )


def _widened(tensor: StoredTensor) -> StoredTensor:
    tensor.check_finite()
    values = np.ascontiguousarray(tensor.values(), np.float32)
    return StoredTensor(tensor.name, "float32", tensor.shape, values.view(np.uint8))

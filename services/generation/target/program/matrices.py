"""Packed matrices, and records of linear layers, embeddings and adapters' low-rank updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from services.generation.target.adapters import Adapter, LowRank
from services.generation.target.arrays import Float32, Int64
from services.generation.target.config.layer_specs import ModuleSpec
from services.generation.target.files.stored_tensor import StoredTensor
from services.generation.target.kernels import compilation
from services.generation.target.kernels.records import count_of, record_of
from services.generation.target.kernels.row_operations import LANES, PART
from services.generation.target.kernels.storages import GROUP, PANEL, padded
from services.generation.target.program.packing import PackedWeights, Packing
from services.generation.target.weights import stay_apart

Read = Callable[[str], StoredTensor]
Pack = Callable[[Sequence[StoredTensor], Int64 | None], PackedWeights]
"""Packs the rows of tensors, concatenated, in an order (see `Packing.of`).

Raises WeightsInvalid for NaN and infinity.
"""


def linear_record(
    matrix: Matrix, scratch: Mapping[str, object], arithmetic: str = "float32", *, x: Float32, y: Float32,
    count: str = "rows", unit: int = 1, barrier: bool = True,
) -> Int64:  # fmt: skip
    """y = x W^T + b, in the matrix's columns of y, for the rows that the word `count` of a pass counts.

    Members are given multiples of `unit` panels.
    """
    weights = matrix.weights
    values = {
        **scratch, "weights": weights.panels, "x": x, "y": y[:, matrix.first :], "bias": matrix.bias,
        "groups": weights.padded_inputs // GROUP, "panels": matrix.panels, "unit": unit, "count": count_of(count),
    }  # fmt: skip
    kernel = compilation.kernels(compilation.linear_module(weights.storage.name, arithmetic))["linear"]
    return record_of("linear", kernel, values, barrier=barrier)


def embedding_record(
    matrix: Matrix, x: Float32, size: int, scratch: Mapping[str, object], factor: float = 1.0
) -> Int64:
    """x[row] = factor * the embedding of the row's token."""
    weights = matrix.weights
    values = {
        **scratch, "weights": weights.panels, "groups": weights.padded_inputs // GROUP, "x": x, "size": size,
        "factor": factor,
    }  # fmt: skip
    return record_of("embed", compilation.kernels(f"embed_{weights.storage.name}")["embed"], values)


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """Packed weights and bias [padded columns] for the columns of a layer's output from `first` on."""

    weights: PackedWeights
    bias: Float32
    first: int = 0

    @property
    def panels(self) -> int:
        return len(self.weights.panels)


def pack_tensors(tensors: Sequence[StoredTensor], order: Int64 | None) -> PackedWeights:
    """A `Pack` that packs at each call."""
    return Packing.of(tensors, order).packed()


def matrix_of(
    *tensors: StoredTensor, bias: Float32 | None = None, order: Int64 | None = None, pack: Pack = pack_tensors
) -> Matrix:
    """The packed weights of modules [out, in] with the same inputs. Raises WeightsInvalid for NaN and infinity."""
    weights = pack(tensors, order)
    whole = np.zeros(len(weights.panels) * PANEL, np.float32)
    if bias is not None:
        whole[: len(bias)] = bias
    return Matrix(weights, whole)


def side_by_side(modules: Sequence[ModuleSpec], prefix: str, read: Read, pack: Pack = pack_tensors) -> list[Matrix]:
    """Matrices for the concatenated outputs of modules: one for each run of modules in the same storage.

    A matrix writes whole panels. Modules that do not `stay_apart` are widened to float32 and become one matrix.
    """
    tensors = [read(f"{prefix}{module.name}.weight") for module in modules]
    storages = [tensor.storage for tensor in tensors]
    if not stay_apart(modules, storages):
        storages = ["float32"] * len(modules)
    matrices, first, start = [], 0, 0
    for end in range(1, len(modules) + 1):
        if end < len(modules) and storages[end] == storages[start]:
            continue
        some = modules[start:end]
        biases = np.concatenate([_bias(module, prefix, read) for module in some])
        joined = matrix_of(*tensors[start:end], bias=biases, pack=pack)
        matrices.append(Matrix(joined.weights, joined.bias, first))
        first, start = first + sum(module.outputs for module in some), end
    return matrices


def alternating(modules: Sequence[ModuleSpec], prefix: str, read: Read, pack: Pack = pack_tensors) -> Matrix:
    """A matrix in which panels of two modules of the same size alternate, padded to whole panels.

    A single module is the concatenation of two.
    """
    tensors = [read(f"{prefix}{module.name}.weight") for module in modules]
    size = sum(module.outputs for module in modules) // 2
    columns = np.full((2, padded(size, PANEL)), -1, np.int64)
    columns[0, :size], columns[1, :size] = np.arange(size), np.arange(size, 2 * size)
    order = columns.reshape(2, -1, PANEL).swapaxes(0, 1).reshape(-1)
    biases = np.concatenate([*(_bias(module, prefix, read) for module in modules), np.zeros(1, np.float32)])
    # order -1 is the zero at the end
    return matrix_of(*tensors, bias=biases[order], order=order, pack=pack)


def vector(read: Read, name: str, offset: float = 0.0) -> Float32:
    """A vector of weights, each with `offset` added. Raises WeightsInvalid for NaN and infinity."""
    tensor = read(name)
    tensor.check_finite()
    values = np.array(tensor.values(), np.float32)  # a copy, since a view would keep the whole file mapped
    return values + np.float32(offset) if offset else values


def _bias(module: ModuleSpec, prefix: str, read: Read) -> Float32:
    if not module.bias:
        return np.zeros(module.outputs, np.float32)
    return vector(read, f"{prefix}{module.name}.bias")


@dataclass(frozen=True, slots=True, eq=False)
class AdapterUpdates:
    """Records of the adapters' updates of one linear layer.

    parts [parts, len(PART)]; adapter_parts [adapters + 1]: the first part of each adapter.
    """

    parts: Int64
    adapter_parts: Int64
    keeps_alive: tuple[Float32, ...]  # the matrices to which records point

    @property
    def any(self) -> bool:
        return len(self.parts) > 0

    @classmethod
    def of(cls, adapters: Sequence[Adapter], layer: int, modules: Sequence[ModuleSpec], halves: bool) -> AdapterUpdates:
        """Updates of a layer's modules. `halves`: in the output, panels of two modules, or of the two halves of one
        module, alternate; otherwise modules are concatenated.
        """
        parts, starts, keeps_alive = [], [0], []
        for adapter in adapters:
            first = 0
            for module in modules:
                fused = halves and len(modules) == 1
                update = adapter.updates.get((layer, module.name))
                if update is not None:
                    for number, up_rows in enumerate(np.split(update.up, 2) if fused else (update.up,)):
                        down, up = _terms_first(update.down), _terms_first(up_rows)
                        keeps_alive += [down, up]
                        parts.append(_part(update, down, up, len(up_rows), first + number * PANEL, halves))
                first += PANEL if halves else module.outputs
            starts.append(len(parts))
        records = np.array(parts, np.int64).reshape(-1, len(PART))
        return cls(records, np.array(starts, np.int64), tuple(keeps_alive))


def _part(update: LowRank, down: Float32, up: Float32, outputs: int, first: int, halves: bool) -> list[int]:
    scale = int(np.float32(update.scale).view(np.uint32))
    return [down.ctypes.data, up.ctypes.data, update.down.shape[1], update.rank, outputs, first, int(halves), scale]


def _terms_first(matrix: Float32) -> Float32:
    """[outputs, terms] as [terms, outputs], lines padded with zeros to whole vectors."""
    outputs, terms = matrix.shape
    whole = np.zeros((terms, padded(outputs, LANES)), np.float32)
    whole[:, :outputs] = matrix.T
    return whole

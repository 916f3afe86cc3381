"""The packing of published weights into panels (`storages`), without rounding, on all CPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from services.generation.target.arrays import Bytes, Int64
from services.generation.target.files.stored_tensor import LAYOUTS, StoredTensor
from services.generation.target.kernels import compilation
from services.generation.target.kernels.machine import cpus
from services.generation.target.kernels.storages import GROUP, PANEL, Storage, packed_as, padded
from services.generation.target.program.buffers import on_huge_pages

_PART_BYTES = 1 << 19  # of panels that are packed at a time, which stay in a core's cache
_IQ4_NL = np.array((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.int8)


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


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Tensors of `inputs` inputs that become one packed matrix, and the address of each column's row."""

    storage: Storage
    columns: int
    inputs: int
    tensors: Sequence[StoredTensor]
    addresses: Int64
    rows: Sequence[Bytes]  # to which addresses point

    @classmethod
    def of(cls, tensors: Sequence[StoredTensor], order: Int64 | None = None) -> Packing:
        """`order` is the row, of all tensors, of each column, -1 for a column of zeros: layers that are computed
        together are one packed matrix. Tensors of several storages are packed as float32.
        """
        if len({tensor.storage for tensor in tensors}) > 1:
            tensors = [_widened(tensor) for tensor in tensors]
        storage, inputs = tensors[0].storage, tensors[0].shape[1]
        empty = replace(tensors[0], data=np.zeros_like(tensors[0].data[:1]))
        rows = [_blocks(tensor) for tensor in (*tensors, empty)]
        size = rows[0].shape[1]
        places = np.concatenate([each.ctypes.data + size * np.arange(len(each)) for each in rows])
        columns = len(places) - 1 if order is None else len(order)
        addresses = np.full(padded(columns, PANEL), places[-1])
        addresses[:columns] = places[:-1] if order is None else places[order]
        return cls(packed_as(storage), columns, inputs, tensors, addresses, rows)

    @property
    def shape(self) -> tuple[int, int]:
        """Panels, and bytes of a panel."""
        return len(self.addresses) // PANEL, self.storage.panel(padded(self.inputs, GROUP))

    def packed(self) -> PackedWeights:
        """The panels in memory. Raises WeightsInvalid for NaN and infinity."""
        count, size = self.shape
        panels = on_huge_pages(count * size).reshape(count, size)
        self.each_part(lambda first, end: self.fill(panels[first:end], first))
        return self.of_panels(panels)

    def of_panels(self, panels: Bytes) -> PackedWeights:
        return PackedWeights(self.storage, self.columns, self.inputs, panels)

    def fill(self, panels: Bytes, first: int) -> None:
        """Pack the panels from `first` on. Raises WeightsInvalid for NaN and infinity."""
        kernel = compilation.kernels(f"pack_{self.storage.name}")["pack"]
        blocks = padded(self.inputs, GROUP) // (GROUP * self.storage.groups)
        rows, infinite = self.addresses[PANEL * first :], np.zeros(PANEL, np.uint8)
        compilation.call(kernel, rows.ctypes.data, panels.ctypes.data, blocks, len(panels), infinite.ctypes.data)
        if infinite.any():
            for tensor in self.tensors:
                tensor.check_finite()

    def each_part(self, work: Callable[[int, int], None]) -> None:
        """Call `work` for parts of the panels, from the first to an end, on all CPUs. Raises what `work` raises."""
        count, size = self.shape
        firsts = range(0, count, max(1, _PART_BYTES // size))
        ends = [*firsts[1:], count]
        if len(ends) == 1:
            work(0, count)
            return
        with ThreadPoolExecutor(cpus()) as pool:
            list(pool.map(work, firsts, ends))


def _widened(tensor: StoredTensor) -> StoredTensor:
    tensor.check_finite()
    values = np.ascontiguousarray(tensor.values(), np.float32)
    return StoredTensor(tensor.name, "float32", tensor.shape, values.view(np.uint8))


def _blocks(tensor: StoredTensor) -> Bytes:
    """Rows [rows, bytes of whole blocks]."""
    rows, inputs = tensor.data, tensor.shape[1]
    if tensor.storage == "iq4_nl":
        return _in_bytes(rows)
    if inputs % GROUP:  # plain numbers
        rows = np.pad(rows, ((0, 0), (0, -inputs % GROUP * rows.shape[1] // inputs)))
    return np.ascontiguousarray(rows)


def _in_bytes(rows: Bytes) -> Bytes:
    """Rows of iq4_nl as q8_0 with the same scales and values."""
    blocks = rows.reshape(len(rows), -1, LAYOUTS["iq4_nl"].size)
    halves = blocks[..., 2:]
    values = _IQ4_NL[np.concatenate([halves & 15, halves >> 4], axis=-1)].view(np.uint8)
    return np.concatenate([blocks[..., :2], values], axis=-1).reshape(len(rows), -1)

"""The low-rank updates of all loaded adapters to one linear layer, as the kernel `low_rank` reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.generation.target.adapters.adapter import Adapter, LowRank
from services.generation.target.canonical.kernels.row_operations import LANES, MOST_RANK, PART
from services.generation.target.canonical.kernels.storages import PANEL, padded
from services.generation.target.config.layer_specs import ModuleSpec
from services.generation.target.errors import AdapterUnsupported

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class AdapterUpdates:
    """`parts` [parts, len(PART)] records; `adapter_parts` [adapters + 1]: the first part of each adapter."""

    parts: Int64
    adapter_parts: Int64
    kept: tuple[Float32, ...]  # the matrices that the records point to

    @property
    def any(self) -> bool:
        return len(self.parts) > 0

    @classmethod
    def of(cls, adapters: Sequence[Adapter], layer: int, modules: Sequence[ModuleSpec], halves: bool) -> AdapterUpdates:
        """`halves`: panels of the two modules, or of one module's two halves, alternate in the output; else modules
        stand side by side.

        Raises:
            AdapterUnsupported: a rank above what the kernel has room for.
        """
        parts, starts, kept = [], [0], []
        for adapter in adapters:
            first = 0
            for module in modules:
                fused = halves and len(modules) == 1
                update = adapter.updates.get((layer, module.name))
                if update is not None:
                    rows = [update.up[r.start : r.stop] for r in module.rows]
                    held = np.concatenate(rows) if rows else update.up
                    for number, up_rows in enumerate(np.split(held, 2) if fused else (held,)):
                        down, up = _terms_first(update.down), _terms_first(up_rows)
                        kept += [down, up]
                        parts.append(_part(update, down, up, len(up_rows), first + number * PANEL, halves))
                first += PANEL if halves else module.outputs
            starts.append(len(parts))
        records = np.array(parts, np.int64).reshape(-1, len(PART))
        return cls(records, np.array(starts, np.int64), tuple(kept))


def _part(update: LowRank, down: Float32, up: Float32, outputs: int, first: int, halves: bool) -> list[int]:
    if update.rank > MOST_RANK:
        raise AdapterUnsupported(f"rank: {update.rank} is above {MOST_RANK}, the largest that is supported")
    scale = int(np.float32(update.scale).view(np.uint32))
    return [down.ctypes.data, up.ctypes.data, update.down.shape[1], update.rank, outputs, first, int(halves), scale]


def _terms_first(matrix: Float32) -> Float32:
    """[outputs, terms] as [terms, outputs], lines filled up with zeros to whole vectors."""
    outputs, terms = matrix.shape
    whole = np.zeros((terms, padded(outputs, LANES)), np.float32)
    whole[:, :outputs] = matrix.T
    return whole

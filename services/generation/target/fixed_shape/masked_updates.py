"""The low-rank updates of adapters in passes of a fixed shape: computed for every row, kept for the adapter's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch.nn.functional import linear, pad

from services.generation.target.adapters.adapter import Adapter, LowRank
from services.generation.target.config.layer_specs import ModuleSpec

KERNEL = "torch-linear-masked-v1"
_RANKS = 16  # ranks are filled up with zeros to a multiple of this: matrix products of odd sizes treat rows unequally


@dataclass(frozen=True, slots=True)
class _Part:
    first: int
    down: torch.Tensor  # [rank, in]
    up: torch.Tensor  # [out, rank]
    scale: float


class MaskedSum:
    """`y += scale * ((x A^T) B^T)` for the rows of the adapter; of one fused linear layer.

    Each product has the pass's number of rows, whatever their adapters are, so it gives a row the same bits wherever
    the layer itself does.
    """

    def __init__(
        self,
        adapters: Sequence[Adapter],
        layer: int,
        modules: Sequence[ModuleSpec],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        starts = accumulate((module.outputs for module in modules), initial=0)
        columns = list(zip(starts, (module.name for module in modules), strict=False))

        def part(first: int, update: LowRank) -> _Part:
            missing = -update.rank % _RANKS
            down = pad(torch.from_numpy(update.down), (0, 0, 0, missing))
            up = pad(torch.from_numpy(update.up), (0, missing))
            return _Part(first, down.to(device, dtype), up.to(device, dtype), update.scale)

        self._parts = [
            [part(at, adapter.updates[layer, name]) for at, name in columns if (layer, name) in adapter.updates]
            for adapter in adapters
        ]

    def add(self, x: torch.Tensor, adapted: Mapping[int, torch.Tensor], y: torch.Tensor) -> torch.Tensor:
        """y [rows, out], updated in place; `adapted` are the adapters of the pass with their rows [rows, 1], bool."""
        for adapter, rows in adapted.items():
            for part in self._parts[adapter]:
                columns = y[:, part.first : part.first + len(part.up)]
                update = linear(linear(x, part.down), part.up) * part.scale
                columns.copy_(torch.where(rows, columns + update, columns))
        return y

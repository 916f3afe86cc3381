"""Keys and values of earlier tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.target.blocks import BLOCK
from services.generation.target.canonical.kernels.attention.cached import Cached
from services.generation.target.canonical.kernels.attention.layout import LANES
from services.generation.target.canonical.kernels.storages import padded
from services.generation.target.canonical.program.memory import on_huge_pages
from services.generation.target.families.layers import LayerSizes

Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Cache:
    """Keys [layers, blocks, kv_heads, dim, BLOCK] and values [layers, blocks, kv_heads, BLOCK, dim padded], in the form
    `cached`; cosines and sines of each layer's rotations, [positions, frequencies]; what its queries are multiplied
    with, [positions].
    """

    cached: Cached
    keys: NDArray[Any]
    values: NDArray[Any]
    rotations: Sequence[tuple[Float32, Float32]]
    scales: Sequence[Float32]

    @classmethod
    def empty(
        cls, sizes: LayerSizes, blocks: int, rotations: Sequence[tuple[Float32, Float32]], scales: Sequence[Float32],
        cached: Cached,
    ) -> Cache:  # fmt: skip
        """Of zeros, in memory that is touched only as it is used; `rotations` and `scales` of each layer."""
        shape = len(rotations), blocks, sizes.kv_heads

        def zeros(*block: int) -> NDArray[Any]:
            kind = np.float32 if cached.size == 4 else np.uint16
            size = cached.size * int(np.prod((*shape, *block)))
            return on_huge_pages(size).view(kind).reshape(*shape, *block)

        keys, values = zeros(sizes.head_dim, BLOCK), zeros(BLOCK, padded(sizes.head_dim, LANES))
        return cls(cached, keys, values, rotations, scales)

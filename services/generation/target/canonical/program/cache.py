"""Keys and values of earlier tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.target.blocks import BLOCK
from services.generation.target.canonical.kernels.attention.layout import LANES, Cached
from services.generation.target.canonical.kernels.storages import padded
from services.generation.target.canonical.program.memory import on_huge_pages
from services.generation.target.config.layer_specs import LayerSpec

Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Cache:
    """Of each layer keys [blocks, kv_heads, dim, BLOCK] and values [blocks, kv_heads, BLOCK, dim padded], in the form
    `cached`, its own or those of another layer; cosines and sines of its rotation, [positions, frequencies]; the
    factors of its queries, [positions].
    """

    cached: Cached
    groups: Sequence[tuple[NDArray[Any], NDArray[Any]]]  # those of layers of the same sizes, [layers, blocks, ...]
    keys: Sequence[NDArray[Any]]
    values: Sequence[NDArray[Any]]
    rotations: Sequence[tuple[Float32, Float32]]
    scales: Sequence[Float32]

    @classmethod
    def empty(
        cls, layers: Sequence[LayerSpec], blocks: int, rotations: Sequence[tuple[Float32, Float32]],
        scales: Sequence[Float32], cached: Cached,
    ) -> Cache:  # fmt: skip
        """Of zeros, in memory that is touched only as it is used; `rotations` and `scales` of each layer."""
        kind = np.float32 if cached.size == 4 else np.uint16

        def zeros(*shape: int) -> NDArray[Any]:
            return on_huge_pages(cached.size * int(np.prod(shape))).view(kind).reshape(*shape)

        found: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}
        groups = []
        own = [number for number, layer in enumerate(layers) if layer.source is None]
        for kv_heads, dim in dict.fromkeys((layers[number].kv_heads, layers[number].head_dim) for number in own):
            numbers = [n for n in own if (layers[n].kv_heads, layers[n].head_dim) == (kv_heads, dim)]
            shape = len(numbers), blocks, kv_heads
            keys, values = zeros(*shape, dim, BLOCK), zeros(*shape, BLOCK, padded(dim, LANES))
            groups.append((keys, values))
            found |= {number: (keys[place], values[place]) for place, number in enumerate(numbers)}
        read = [found[number if layer.source is None else layer.source] for number, layer in enumerate(layers)]
        return cls(cached, groups, [keys for keys, _ in read], [values for _, values in read], rotations, scales)

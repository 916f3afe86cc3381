"""A head's weights as the target's kernels read them, and its cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.eagle3.config import EMBEDDING, FEATURE_NORM, HeadConfig, layer_spec
from services.generation.drafting.eagle3.head import Head
from services.generation.drafting.eagle3.rope import rotation_of_head
from services.generation.target.canonical.kernels import compilation
from services.generation.target.canonical.kernels.attention.cached import CACHED
from services.generation.target.canonical.program.cache import Cache
from services.generation.target.canonical.program.layer import Layer, load_layer
from services.generation.target.canonical.program.matrices import Matrix, matrix_of, vector
from services.generation.target.files.stored_tensor import StoredTensor
from services.generation.target.query_scales import query_scales
from services.generation.target.rotations import rotations

Float32 = NDArray[np.float32]

_CACHED = "float32"  # in which keys and values are kept


@dataclass(frozen=True, slots=True, eq=False)
class HeadParts:
    """All that a pass of the head points to; `embedding` is the head's own, where it has one. `arithmetic`: of its
    linear layers, float32 or int8.
    """

    config: HeadConfig
    arithmetic: str
    all_streams_norm: Float32 | None
    stream_norms: Sequence[Float32]
    fc: Matrix
    embedding: Matrix | None
    feature_norm: Float32
    layers: Sequence[Layer]
    norm: Float32
    lm_head: Matrix
    cache: Cache

    @classmethod
    def of(cls, head: Head, arithmetic: str, cache_blocks: int, positions: int) -> HeadParts:
        """With an empty cache; for int8, matrices are rounded to q8_0. Raises WeightsInvalid for weights that are NaN
        or infinite.
        """
        config = head.config
        stored = {name: StoredTensor.of_values(name, values) for name, values in head.tensors.items()}
        if arithmetic == "int8":
            stored |= {name: tensor.rounded() for name, tensor in stored.items() if name != EMBEDDING}
        read = stored.__getitem__
        storages = {tensor.storage for name, tensor in stored.items() if len(tensor.shape) == 2 and name != EMBEDDING}
        linear = sorted(compilation.linear_module(storage, arithmetic) for storage in storages)
        compilation.compile_ahead(["rows", f"cache_{_CACHED}", *linear])
        rotation = rotation_of_head(config)
        turns = [rotations(rotation.inverse_frequencies, rotation.factor, positions)] * config.layers
        scales, layers = query_scales(config.head_dim**-0.5, None, positions), range(config.layers)
        return cls(
            config=config,
            arithmetic=arithmetic,
            all_streams_norm=vector(read, "input_norm.weight") if config.norm_before_fc else None,
            stream_norms=[
                vector(read, f"fc_norm.{i}.weight") for i in range(len(config.feature_layers)) if config.fc_norm
            ],
            fc=matrix_of(read("fc.weight")),
            embedding=matrix_of(read(EMBEDDING)) if config.own_embeddings else None,
            feature_norm=vector(read, FEATURE_NORM),
            layers=[load_layer(layer_spec(config, number), number, (), read) for number in layers],
            norm=vector(read, "norm.weight"),
            lm_head=matrix_of(read("lm_head.weight")),
            cache=Cache.empty(
                [layer_spec(config, number) for number in layers],
                cache_blocks,
                turns,
                [scales] * config.layers,
                CACHED[_CACHED],
            ),
        )

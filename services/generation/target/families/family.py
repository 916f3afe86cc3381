"""What tells one family's models from another's; everything else is in a model's own configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Family:
    """`name` is transformers' model type, and the architecture that a `TargetConfig` names."""

    name: str
    architecture: str  # in config.json
    gguf_name: str  # general.architecture of a GGUF file
    gguf_interleaved: bool  # rows of q and k stand there for a rotation of neighbours, not of halves
    qkv_bias: bool  # q, k and v always have biases and o never; otherwise attention_bias of the configuration says
    head_norms: bool  # each query and key head is normalised
    windows: bool  # sliding_window counts; where a conversion left one in another family, it means nothing
    unrotated_layers: bool = False  # no_rope_layers counts: layers without rotary position embeddings
    partial_rotation: bool = False  # partial_rotary_factor counts
    fused: bool = False  # queries, keys and values are one module, gate and up another
    gguf_modules: Mapping[str, str] = field(default_factory=dict)
    """Names of a layer's modules in GGUF, and in transformers, where they are others than `weights.gguf_names` has."""

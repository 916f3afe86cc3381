"""Differences between families of models; everything else is in a model's own configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.generation.target.families.experts import BesideNames, ExpertNames, StackedExperts


@dataclass(frozen=True, slots=True)
class Family:
    """`name` is transformers' model type, and the architecture that a `TargetConfig` names."""

    name: str
    architecture: str  # in config.json
    multimodal: str = field(default="", kw_only=True)  # the same of checkpoints of which this is the part for text
    gguf_name: str  # general.architecture of a GGUF file; empty where those are not read
    gguf_interleaved: bool  # rows of q and k stand there for a rotation of neighbours, not of halves
    qkv_bias: bool  # q, k and v always have biases and o never; otherwise attention_bias of the configuration says
    head_norms: bool  # each query and key head is normalised
    windows: bool  # sliding_window counts; where a conversion left one in another family, it means nothing
    unrotated_layers: bool = False  # no_rope_layers counts: layers without rotary position embeddings
    partial_rotation: bool = False  # partial_rotary_factor counts
    fused: bool = False  # queries, keys and values are one module, gate and up another
    activation: str = "silu"  # hidden_act, or hidden_activation
    sandwich_norms: bool = False  # outputs of attention and MLP are normalised before they are added to the stream
    norms_around_one: bool = False  # a norm multiplies with 1 + its weights; in GGUF files the 1 is added already
    scaled: tuple[str, ...] = ()
    """Which of query_pre_attn_scalar, attn_logit_softcapping and final_logit_softcapping count; where any do,
    embeddings are scaled too."""
    experts: ExpertNames | None = None  # in place of an MLP in some or all layers
    stacked: StackedExperts | None = None  # how experts lie in safetensors, where not each by itself
    expert_bias: bool = False  # of the router and of experts
    sigmoid_router: bool = False
    beside: BesideNames | None = None  # experts stand beside MLPs
    shared_expert: bool = False  # beside those that are chosen
    mlp: str = "mlp"  # the module that holds gate, up and down
    neighbours: bool = False  # heads turn by neighbours, not by halves
    unit_head_norms: bool = False  # use_qk_norm counts: norms of heads that turn, with weights of 1
    chunks: bool = False  # attention_chunk_size counts
    tempered: bool = False  # attn_temperature_tuning counts, in layers without rotary position embeddings
    sinks: bool = False  # of attention
    clamped: bool = False  # swiglu_alpha and swiglu_limit count
    quantised: tuple[str, ...] = ()  # quant_method of checkpoints that are read as they are
    yarn_truncated: bool = True  # what a GGUF file does not say of yarn
    query_scale: float = 0.0  # what queries are multiplied with, or 0 where their size says it
    sizes_by_layer: bool = False  # per_layer_config counts; values are normalised, and layers have scalars
    gguf_wide_queries: int = 0  # layers of the one model in GGUF whose query_pre_attn_scalar is hidden_size / heads
    gguf_modules: Mapping[str, str] = field(default_factory=dict)
    """Names of a layer's modules in GGUF, and in transformers, where they are others than `files.gguf_names` has."""

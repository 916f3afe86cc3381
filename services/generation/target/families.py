"""Families of models: what tells one from another; everything else is in a model's own configuration.

A new family is one more `Family` and a place in `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

NORM = "model.norm.weight"
"""The last norm."""
CONVOLUTION = "conv.conv"
"""The weights [hidden size, taps] of a layer's short convolution."""
DELTA = "linear_attn"
"""The module of a layer that folds its inputs into a state."""
DELTA_CONVOLUTION, DELTA_SHIFTS, DELTA_RATES, DELTA_NORM = (
    f"{DELTA}.{name}" for name in ("conv1d", "dt_bias", "A_log", "norm")
)
"""Its weights beside linear layers: [channels, taps] of convolutions, two vectors [value heads], and [value size]."""


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Modules of a layer: the router, and those of one expert with its number for {}."""

    router: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True, slots=True)
class BesideNames:
    """Vectors of a layer whose experts stand beside its MLP (Gemma 4): each has norms, and they are added up."""

    router_norm: str  # multiplied with hidden_size^(-1/2)
    norm: str  # of the experts' input
    after: str  # of their output
    after_mlp: str  # of the MLP's output
    scales: str  # what the share of each expert is multiplied with


@dataclass(frozen=True, slots=True)
class StackedExperts:
    """All experts of a layer as one tensor in safetensors: gate and up together, and down."""

    module: str  # that holds `gate_up_proj` and `down_proj`
    transposed: bool  # matrices are [in, out]
    interleaved: bool  # outputs of gate and up take turns; otherwise gate's come first


@dataclass(frozen=True, slots=True)
class Clamp:
    """Bounds of gate and up (`docs/numerics.md`, clamped)."""

    slope: float
    limit: float


@dataclass(frozen=True, slots=True)
class Experts:
    """MLPs of which every row takes a few (Shazeer et al. 2017): `chosen` of `count`, each of inner size `size`."""

    names: ExpertNames
    layers: tuple[bool, ...]  # which have experts in place of one MLP
    count: int
    chosen: int
    size: int
    normalised: bool  # shares of the chosen sum to one, not those of all
    bias: bool = False  # of the router and of all modules
    sigmoid: bool = False  # a share is the sigmoid of its logit, and scales what the expert reads
    scored: bool = False  # sigmoids of all logits stand in place of the exponentials
    choice_bias: str = ""  # a vector that is added to them where experts are chosen, and only there, or none
    scale: float = 1.0  # of all shares
    shared: int = 0  # inner activations of an expert beside those chosen, or 0
    beside: BesideNames | None = None  # the MLP, not in its place


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """Layers that fold keys and values into a state by the gated delta rule (Yang et al. 2024), and their sizes. Each
    key head serves as many value heads as its share is.
    """

    layers: tuple[bool, ...]  # which they are
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int  # of the convolutions of queries, keys and values

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def convolved(self) -> int:
        """Queries, keys and values of a token."""
        return 2 * self.keys + self.values

    @property
    def cached(self) -> int:
        """What the cache holds of a token: these before their convolution, and two numbers of each value head."""
        return self.convolved + 2 * self.value_heads

    @property
    def state(self) -> int:
        """Numbers of a layer's state."""
        return self.key_dim * self.values


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """`name` is transformers' model type, and the architecture that a `TargetConfig` names."""

    name: str
    architecture: str  # in config.json
    multimodal: str = ""  # the same of checkpoints of which this is the part for text
    gguf_name: str = ""  # general.architecture of a GGUF file; empty where those are not read
    gguf_interleaved: bool = False  # rows of q and k stand there for an interleaved rotation
    qkv_bias: bool = (
        False  # q, k and v always have biases and o never; otherwise attention_bias of the configuration says
    )
    head_norms: bool = False  # each query and key head is normalised
    whole_norms: bool = False  # all queries of a row are normalised as one vector, and all keys
    windows: bool = True  # sliding_window counts; where a conversion left one in another family, it means nothing
    unrotated_layers: bool = False  # no_rope_layers counts: layers without rotary position embeddings
    partial_rotation: bool = False  # partial_rotary_factor counts
    fused: bool = False  # queries, keys and values are one module, gate and up another
    activation: str = "silu"  # hidden_act, or hidden_activation
    sandwich_norms: bool = False  # outputs of attention and MLP are normalised before they are added to the stream
    norms_before: bool = True  # and so are their inputs
    norms_around_one: bool = False  # a norm multiplies with 1 + its weights; in GGUF files the 1 is added already
    scaled: tuple[str, ...] = ()
    """Which of query_pre_attn_scalar, attn_logit_softcapping and final_logit_softcapping count; where any do,
    embeddings are scaled too."""
    experts: ExpertNames | None = None  # in place of an MLP in some or all layers
    stacked: StackedExperts | None = None  # how experts lie in safetensors, where not each by itself
    expert_bias: bool = False  # of the router and of experts
    sigmoid_router: bool = False
    scored_router: bool = False  # use_expert_bias and routed_scaling_factor count
    choice_bias: str = ""  # what is added to its scores where experts are chosen
    beside: BesideNames | None = None  # experts stand beside MLPs
    shared_expert: bool = False  # beside those that are chosen
    mlp: str = "mlp"  # the module that holds gate, up and down
    rotations_by_kind: bool = False  # layers with a window turn by rope_theta alone, whatever scales the others
    interleaved: bool = False  # RoPE turns elements 2i and 2i + 1, not i and i + n
    unit_head_norms: bool = False  # use_qk_norm counts: norms of heads that turn, with weights of 1
    chunks: bool = False  # attention_chunk_size counts
    rotated_windows: bool = False  # where some layers have windows, the others do not turn
    beta: bool = False  # llama_4_scaling_beta of rope_parameters counts: a temperature in all layers
    tempered: bool = False  # attn_temperature_tuning counts, in layers without rotary position embeddings
    sinks: bool = False  # of attention
    clamped: bool = False  # swiglu_alpha and swiglu_limit count
    quantised: tuple[str, ...] = ()  # quant_method of checkpoints that are read as they are
    yarn_truncated: bool = True  # what a GGUF file does not say of yarn
    query_scale: float = 0.0  # what queries are multiplied with, or 0 where their size says it
    sizes_by_layer: bool = False  # per_layer_config counts; values are normalised, and layers have scalars
    gguf_wide_queries: int = 0  # layers of the one model in GGUF whose query_pre_attn_scalar is hidden_size / heads
    names: Mapping[str, str] = field(default_factory=dict)
    """What published checkpoints call modules and norms of a layer, by Llama's names, where they are others."""
    final_norm: str = NORM
    multipliers: bool = False  # of embeddings, queries, what layers add, and logits count
    convolved: bool = False  # layer_types counts: layers of conv are gated short convolutions
    delta: bool = False  # layer_types counts: layers of linear_attention fold a state
    gated: bool = False  # q_proj gives each head a gate of what it attends to, behind its query
    gguf_modules: Mapping[str, str] = field(default_factory=dict)
    """Names of a layer's modules in GGUF, and in transformers, where they are others than `files.gguf_names` has."""


# Llama (Touvron et al. 2023), and all that publish under its name: no norm of heads, no window.
LLAMA = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    gguf_name="llama",
    gguf_interleaved=True,
    windows=False,
)

# Mistral (Jiang et al. 2023): Llama with a sliding window; its GGUF files call it a llama.
MISTRAL = Family(
    name="mistral",
    architecture="MistralForCausalLM",
    multimodal="Mistral3ForConditionalGeneration",  # of Mistral Small 3
    gguf_name="llama",
    gguf_interleaved=True,
)

# Mixtral (Jiang et al. 2024): Mistral with experts; its GGUF files call it a llama.
_MIXTRAL_EXPERT = "block_sparse_moe.experts.{}"

MIXTRAL = Family(
    name="mixtral",
    architecture="MixtralForCausalLM",
    gguf_name="llama",
    gguf_interleaved=True,
    experts=ExpertNames(
        "block_sparse_moe.gate", f"{_MIXTRAL_EXPERT}.w1", f"{_MIXTRAL_EXPERT}.w3", f"{_MIXTRAL_EXPERT}.w2"
    ),
    gguf_modules={
        "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": f"{_MIXTRAL_EXPERT}.w1",
        "ffn_up_exps": f"{_MIXTRAL_EXPERT}.w3",
        "ffn_down_exps": f"{_MIXTRAL_EXPERT}.w2",
    },
)

# Qwen2 and Qwen2.5 (Yang et al. 2024): biases on queries, keys and values.
QWEN2 = Family(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    gguf_name="qwen2",
    qkv_bias=True,
)

# Qwen3 (Yang et al. 2025): each head of queries and keys is normalised before its rotation.
QWEN3 = Family(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    gguf_name="qwen3",
    head_norms=True,
)

# Qwen3-MoE (Yang et al. 2025): Qwen3 with experts.
QWEN3_MOE = Family(
    name="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    gguf_name="qwen3moe",
    head_norms=True,
    experts=ExpertNames("mlp.gate", "mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj", "mlp.experts.{}.down_proj"),
    gguf_modules={
        "ffn_gate_inp": "mlp.gate",
        "ffn_gate_exps": "mlp.experts.{}.gate_proj",
        "ffn_up_exps": "mlp.experts.{}.up_proj",
        "ffn_down_exps": "mlp.experts.{}.down_proj",
    },
)

# SmolLM3 (Bakouch et al. 2025): Llama in which every fourth layer has no rotary position embeddings.
SMOLLM3 = Family(
    name="smollm3",
    architecture="SmolLM3ForCausalLM",
    gguf_name="smollm3",
    gguf_interleaved=True,
    unrotated_layers=True,
)

# Phi-3 (Abdin et al. 2024), Phi-3.5 and Phi-4: fused modules, LongRoPE, and heads that turn in part.
PHI3 = Family(
    name="phi3",
    architecture="Phi3ForCausalLM",
    gguf_name="phi3",
    partial_rotation=True,
    fused=True,
    gguf_modules={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
)

# Gemma 2 (Riviere et al. 2024): norms before and after, windows in every second layer, capped scores and logits.
GEMMA2 = Family(
    name="gemma2",
    architecture="Gemma2ForCausalLM",
    gguf_name="gemma2",
    activation="gelu_pytorch_tanh",
    sandwich_norms=True,
    norms_around_one=True,
    scaled=("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"),
    gguf_wide_queries=46,
    gguf_modules={
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
)

# Gemma 3 (Kamath et al. 2025), text: Gemma 2 with head norms instead of caps, and two rotations.
GEMMA3 = Family(
    name="gemma3_text",
    architecture="Gemma3ForCausalLM",
    multimodal="Gemma3ForConditionalGeneration",
    gguf_name="gemma3",
    head_norms=True,
    activation="gelu_pytorch_tanh",
    sandwich_norms=True,
    norms_around_one=True,
    scaled=("query_pre_attn_scalar", "final_logit_softcapping"),
    gguf_wide_queries=62,
    gguf_modules={
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
)

# Gemma 4 (Google 2026), text: Gemma 3 with larger heads in layers without a window, norms of values, and, by size,
# experts beside MLPs or inputs of each layer.
_GEMMA4_EXPERT = "experts.{}"

GEMMA4 = Family(
    name="gemma4_text",
    architecture="Gemma4ForCausalLM",
    multimodal="Gemma4ForConditionalGeneration",
    gguf_name="gemma4",
    head_norms=True,
    activation="gelu_pytorch_tanh",
    sandwich_norms=True,
    scaled=("final_logit_softcapping",),
    query_scale=1.0,
    experts=ExpertNames(
        "router.proj", f"{_GEMMA4_EXPERT}.gate_proj", f"{_GEMMA4_EXPERT}.up_proj", f"{_GEMMA4_EXPERT}.down_proj"
    ),
    stacked=StackedExperts("experts", transposed=False, interleaved=False),
    beside=BesideNames(
        router_norm="router.scale",
        norm="pre_feedforward_layernorm_2",
        after="post_feedforward_layernorm_2",
        after_mlp="post_feedforward_layernorm_1",
        scales="router.per_expert_scale",
    ),
    sizes_by_layer=True,
    gguf_modules={
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
        "post_ffw_norm_1": "post_feedforward_layernorm_1",
        "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
        "post_ffw_norm_2": "post_feedforward_layernorm_2",
        "ffn_gate_inp": "router.proj",
        "ffn_gate_inp.scale": "router.scale",
        "ffn_gate_up_exps": f"{_GEMMA4_EXPERT}.gate_up_proj",
        "ffn_gate_exps": f"{_GEMMA4_EXPERT}.gate_proj",
        "ffn_up_exps": f"{_GEMMA4_EXPERT}.up_proj",
        "ffn_down_exps": f"{_GEMMA4_EXPERT}.down_proj",
        "ffn_down_exps.scale": "router.per_expert_scale",
        "inp_gate": "per_layer_input_gate",
        "proj": "per_layer_projection",
        "post_norm": "post_per_layer_input_norm",
        "layer_output_scale": "layer_scalar",
    },
)


# gpt-oss (OpenAI 2025): experts with biases and bounds, sinks of attention, windows in every second layer.
_GPT_OSS_EXPERT = "mlp.experts.{}"

GPT_OSS = Family(
    name="gpt_oss",
    architecture="GptOssForCausalLM",
    gguf_name="gpt-oss",
    experts=ExpertNames(
        "mlp.router", f"{_GPT_OSS_EXPERT}.gate_proj", f"{_GPT_OSS_EXPERT}.up_proj", f"{_GPT_OSS_EXPERT}.down_proj"
    ),
    stacked=StackedExperts("mlp.experts", transposed=True, interleaved=True),
    expert_bias=True,
    sinks=True,
    clamped=True,
    quantised=("mxfp4",),
    yarn_truncated=False,
    gguf_modules={
        "attn_sinks": "self_attn.sinks",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_gate_inp": "mlp.router",
        "ffn_gate_exps": f"{_GPT_OSS_EXPERT}.gate_proj",
        "ffn_up_exps": f"{_GPT_OSS_EXPERT}.up_proj",
        "ffn_down_exps": f"{_GPT_OSS_EXPERT}.down_proj",
    },
)

# Llama 4 (Meta 2025), text: experts beside a shared one, and attention in chunks or, by position, tempered.
_LLAMA4_EXPERT, _LLAMA4_SHARED = "feed_forward.experts.{}", "feed_forward.shared_expert"

LLAMA4 = Family(
    name="llama4_text",
    architecture="Llama4ForCausalLM",
    multimodal="Llama4ForConditionalGeneration",
    gguf_name="llama4",
    windows=False,
    unrotated_layers=True,
    experts=ExpertNames(
        "feed_forward.router", f"{_LLAMA4_EXPERT}.gate_proj", f"{_LLAMA4_EXPERT}.up_proj", f"{_LLAMA4_EXPERT}.down_proj"
    ),
    stacked=StackedExperts("feed_forward.experts", transposed=True, interleaved=False),
    sigmoid_router=True,
    shared_expert=True,
    mlp="feed_forward",
    interleaved=True,
    unit_head_norms=True,
    chunks=True,
    tempered=True,
    gguf_modules={
        "ffn_gate": "feed_forward.gate_proj",
        "ffn_up": "feed_forward.up_proj",
        "ffn_down": "feed_forward.down_proj",
        "ffn_gate_inp": "feed_forward.router",
        "ffn_gate_exps": f"{_LLAMA4_EXPERT}.gate_proj",
        "ffn_up_exps": f"{_LLAMA4_EXPERT}.up_proj",
        "ffn_down_exps": f"{_LLAMA4_EXPERT}.down_proj",
        "ffn_gate_shexp": f"{_LLAMA4_SHARED}.gate_proj",
        "ffn_up_shexp": f"{_LLAMA4_SHARED}.up_proj",
        "ffn_down_shexp": f"{_LLAMA4_SHARED}.down_proj",
    },
)

# LFM2 and LFM2.5 (Liquid AI 2025): gated short convolutions, and attention with head norms in a few layers.
LFM2 = Family(
    name="lfm2",
    architecture="Lfm2ForCausalLM",
    gguf_name="lfm2",
    windows=False,
    head_norms=True,
    convolved=True,
    final_norm="model.embedding_norm.weight",
    names={
        "input_layernorm": "operator_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_norm": "self_attn.q_layernorm",
        "self_attn.k_norm": "self_attn.k_layernorm",
        "self_attn.o_proj": "self_attn.out_proj",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
    },
    gguf_modules={
        "attn_norm": "operator_norm",
        "attn_q_norm": "self_attn.q_layernorm",
        "attn_k_norm": "self_attn.k_layernorm",
        "attn_output": "self_attn.out_proj",
        "shortconv.in_proj": "conv.in_proj",
        "shortconv.conv": "conv.conv",
        "shortconv.out_proj": "conv.out_proj",
        "ffn_norm": "ffn_norm",
        "ffn_gate": "feed_forward.w1",
        "ffn_up": "feed_forward.w3",
        "ffn_down": "feed_forward.w2",
    },
)


# LFM2 with experts (Liquid AI 2025): scores by sigmoid, with a bias that only chooses.
_LFM2_EXPERT = "feed_forward.experts.{}"

LFM2_MOE = replace(
    LFM2,
    name="lfm2_moe",
    architecture="Lfm2MoeForCausalLM",
    gguf_name="lfm2moe",
    experts=ExpertNames("feed_forward.gate", f"{_LFM2_EXPERT}.w1", f"{_LFM2_EXPERT}.w3", f"{_LFM2_EXPERT}.w2"),
    scored_router=True,
    choice_bias="feed_forward.expert_bias",
    gguf_modules={
        **LFM2.gguf_modules,
        "ffn_gate_inp": "feed_forward.gate",
        "exp_probs_b": "feed_forward.expert_bias",
        "ffn_gate_exps": f"{_LFM2_EXPERT}.w1",
        "ffn_up_exps": f"{_LFM2_EXPERT}.w3",
        "ffn_down_exps": f"{_LFM2_EXPERT}.w2",
    },
)


# OLMo 2 (OLMo et al. 2024): norms after attention and MLP and none before, and of queries and keys as whole vectors.
OLMO2 = Family(
    name="olmo2",
    architecture="Olmo2ForCausalLM",
    gguf_name="olmo2",
    windows=False,
    head_norms=True,
    whole_norms=True,
    sandwich_norms=True,
    norms_before=False,
    gguf_modules={
        "post_attention_norm": "post_attention_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
)

# OLMo 3 (Ai2 2025): OLMo 2 with windows in three of four layers, whose rotation is never scaled.
OLMO3 = replace(OLMO2, name="olmo3", architecture="Olmo3ForCausalLM", windows=True, rotations_by_kind=True)


# Granite 3 (IBM 2024), dense: Llama with four factors.
GRANITE = Family(
    name="granite",
    architecture="GraniteForCausalLM",
    gguf_name="granite",
    gguf_interleaved=True,
    windows=False,
    multipliers=True,
)

# Qwen3.5 and later (Qwen 2026), dense: three of four layers fold a state, the others attend with gates.
QWEN3_5 = Family(
    name="qwen3_5_text",
    architecture="Qwen3_5ForCausalLM",
    multimodal="Qwen3_5ForConditionalGeneration",
    windows=False,
    head_norms=True,
    norms_around_one=True,
    partial_rotation=True,
    delta=True,
    gated=True,
)


# Ministral 3 (Mistral AI 2025): Mistral with queries scaled by position.
MINISTRAL3 = replace(
    MISTRAL,
    name="ministral3",
    architecture="Ministral3ForCausalLM",
    multimodal="Mistral3ForConditionalGeneration",
    gguf_name="mistral3",
    beta=True,
)

# Qwen3-VL (Qwen 2025), text: Qwen3, for the positions of text are the same in all three of its rotation's sections.
QWEN3_VL = replace(
    QWEN3,
    name="qwen3_vl_text",
    architecture="Qwen3VLTextModel",
    multimodal="Qwen3VLForConditionalGeneration",
    gguf_name="qwen3vl",
)

# EXAONE 4 (LG AI Research 2025): norms after, as OLMo 2, of each head, and large ones turn heads in windows only.
EXAONE4 = replace(
    OLMO2,
    name="exaone4",
    architecture="Exaone4ForCausalLM",
    gguf_name="exaone4",
    windows=True,
    whole_norms=False,
    rotated_windows=True,
)

# Seed-OSS (ByteDance 2025): Llama with biases on queries, keys and values.
SEED_OSS = Family(
    name="seed_oss",
    architecture="SeedOssForCausalLM",
    gguf_name="seed_oss",
    windows=False,
    qkv_bias=True,
    gguf_modules={"post_attention_norm": "post_attention_layernorm"},
)

# ERNIE 4.5 (Baidu 2025), dense: Llama with an interleaved rotation.
ERNIE4_5 = Family(
    name="ernie4_5",
    architecture="Ernie4_5ForCausalLM",
    gguf_name="ernie4_5",
    windows=False,
    interleaved=True,
)


FAMILIES = (
    LLAMA, MISTRAL, QWEN2, QWEN3, SMOLLM3, PHI3, GEMMA2, GEMMA3, QWEN3_MOE, MIXTRAL, GPT_OSS, LLAMA4, GEMMA4, LFM2,
    GRANITE, LFM2_MOE, OLMO2, OLMO3, MINISTRAL3, QWEN3_VL, EXAONE4, SEED_OSS, ERNIE4_5, QWEN3_5,
)  # fmt: skip

BY_NAME: Mapping[str, Family] = {family.name: family for family in FAMILIES}
ARCHITECTURES = tuple(dict.fromkeys(n for family in FAMILIES for n in (family.architecture, family.multimodal) if n))


MISSING: Mapping[str, str] = {
    "ApertusForCausalLM": "the activation xIELU",
    "ArceeForCausalLM": "the activation relu squared",
    "Cohere2ForCausalLM": "norms that subtract a mean, attention beside the MLP",
    "CohereForCausalLM": "norms that subtract a mean, attention beside the MLP",
    "DeepseekV2ForCausalLM": "multi-head latent attention",
    "DeepseekV3ForCausalLM": "multi-head latent attention",
    "DeepseekV32ForCausalLM": "multi-head latent attention, sparse attention",
    "FalconForCausalLM": "norms that subtract a mean, attention beside the MLP",
    "FalconH1ForCausalLM": "Mamba-2 layers",
    "Gemma3nForConditionalGeneration": "four streams in one (AltUp)",
    "Glm4ForCausalLM": "layers with gate and up fused alone",
    "GPTNeoXForCausalLM": "norms that subtract a mean",
    "GraniteMoeHybridForCausalLM": "Mamba-2 layers",
    "HunYuanDenseV1ForCausalLM": "norms of heads behind their rotation",
    "MambaForCausalLM": "Mamba layers",
    "Mamba2ForCausalLM": "Mamba-2 layers",
    "NemotronForCausalLM": "norms that subtract a mean",
    "NemotronHForCausalLM": "Mamba-2 layers",
    "OlmoForCausalLM": "norms that subtract a mean",
    "PhiForCausalLM": "norms that subtract a mean",
    "PhimoeForCausalLM": "norms that subtract a mean",
    "Qwen2MoeForCausalLM": "a shared expert with a gate",
    "Qwen3NextForCausalLM": "Gated DeltaNet layers",
    "StableLmForCausalLM": "norms that subtract a mean",
    "Starcoder2ForCausalLM": "norms that subtract a mean",
}
"""Architectures that somebody may come with, and what computing them would take."""


def named_by(architecture: object, document: Mapping[str, Any]) -> Family | None:
    """The family of this name; where several are parts of one multimodal architecture, that of the part for text."""
    found = [family for family in FAMILIES if architecture and architecture in (family.architecture, family.multimodal)]
    text = document.get("text_config")
    kind = text.get("model_type") if isinstance(text, dict) else None
    return next((family for family in found if family.name == kind), found[0] if found else None)


def architecture_of(document: Mapping[str, Any]) -> object:
    """What a config.json says of its architecture, or what its model type stands for where it names none."""
    named = document.get("architectures")
    if isinstance(named, list) and named:
        return named[0]
    if named:
        return named
    kind = document.get("model_type")
    for family in FAMILIES:
        if kind == family.name:
            return family.architecture
        if family.multimodal and kind == family.name.removesuffix("_text"):
            return family.multimodal
    return kind


def gguf_families(name: str) -> list[Family]:
    """The families whose GGUF files have this general.architecture; an empty list where it is not supported."""
    return [family for family in FAMILIES if family.gguf_name and family.gguf_name == name]


@dataclass(frozen=True, slots=True)
class Temperature:
    """Queries at position p are multiplied with 1 + scale * ln(1 + (p + ahead) div floor) (Nakanishi 2025)."""

    floor: int
    scale: float
    ahead: int = 1


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """Sizes of one layer's keys and values."""

    kv_heads: int
    head_dim: int
    tied_values: bool = False  # values equal keys before norm and rotation
    source: int | None = None  # the layer whose keys and values are read; none are computed here

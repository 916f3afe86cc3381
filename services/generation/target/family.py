"""What tells one family of models from another, and the sizes of parts that only some families have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field

NORM = "model.norm.weight"
"""The last norm."""
CONVOLUTION = "conv.conv"
"""The weights [hidden size, taps] of a layer's short convolution."""
DELTA, MAMBA = "linear_attn", "mamba"
"""Modules of layers that fold their inputs into a state: by the gated delta rule, and as Mamba-2 does."""

_GGUF_EXPERTS = ("gate_inp", "gate_exps", "up_exps", "down_exps")


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Modules of a layer: the router, and those of one expert with its number for {}."""

    router: str
    gate: str
    up: str
    down: str

    @property
    def in_gguf(self) -> dict[str, str]:
        """The same by their names in GGUF."""
        return {f"ffn_{part}": module for part, module in zip(_GGUF_EXPERTS, astuple(self), strict=True)}


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

    module: str  # that holds the two
    transposed: bool  # matrices are [in, out]
    interleaved: bool  # outputs of gate and up take turns; otherwise gate's come first
    gate_up: str = "gate_up_proj"
    down: str = "down_proj"


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
    shared_gate: str = ""  # the module whose sigmoid that one's output is multiplied with, or none
    dense_beside: bool = False  # the layer's MLP stands beside them too
    beside: BesideNames | None = None  # the MLP, not in its place


@dataclass(frozen=True, slots=True)
class StateRule:
    """Layers that fold keys and values into a state, by the gated delta rule (Yang et al. 2024) or as Mamba-2 does (Dao
    and Gu 2024, whose B, C and x are keys, queries and values), and their sizes. Key heads serve one share of the value
    heads each: neighbours, or, `tiled`, every value head that many key heads on.
    """

    module: str  # DELTA or MAMBA
    layers: tuple[bool, ...]  # which they are
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int  # of the convolutions of queries, keys and values
    biased: bool = False  # which have biases
    tiled: bool = False
    joined: bool = False  # in_proj_ba is one module, its outputs key head by key head; of safetensors in_proj_qkvz too
    converted: bool = False  # weights are as llama.cpp's converter writes them

    @property
    def delta(self) -> bool:
        """Whether what a state holds for a key is taken from the value that it is given; Mamba-2 only adds."""
        return self.module == DELTA

    @property
    def vectors(self) -> dict[str, int]:
        """Sizes of the weights beside linear layers and the convolution: shifts, rates, norm; skips of Mamba-2."""
        heads, norm = self.value_heads, self.value_dim if self.delta else self.values
        sizes = {"dt_bias": heads, "A_log": heads, "norm": norm} | ({} if self.delta else {"D": heads})
        return {f"{self.module}.{name}": size for name, size in sizes.items()}

    @property
    def convolution(self) -> str:
        """The module of weights [channels, taps]."""
        return f"{self.module}.conv1d"

    @property
    def lines(self) -> dict[str, int]:
        """Sizes of what linear layers give of a token, by the names of the layers."""
        if self.delta:
            sizes, heads = {"qkv": self.convolved, "z": self.values}, self.value_heads
            if self.joined and not self.converted:
                sizes = {"qkvz": sum(sizes.values())}
            sizes |= {"ba": 2 * heads} if self.joined else {"b": heads, "a": heads}
            return {f"{DELTA}.in_proj_{name}": size for name, size in sizes.items()}
        return {f"{MAMBA}.in_proj": self.values + self.cached}

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
        """What the cache holds of a token: these before their convolution, and a number or two of each value head."""
        return self.convolved + (2 if self.delta else 1) * self.value_heads

    @property
    def folded(self) -> int:
        """What is folded of a token: the same after it, and a decay and a strength of each value head."""
        return self.convolved + 2 * self.value_heads

    @property
    def state(self) -> int:
        """Numbers of a layer's state."""
        return self.key_dim * self.values


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
    fused_mlp: bool = False  # only gate and up are, and not in GGUF
    dense_beside: bool = False  # layers with experts have an MLP too, of shared_intermediate_size
    activation: str = "silu"  # hidden_act, or hidden_activation
    sandwich_norms: bool = False  # outputs of attention and MLP are normalised before they are added to the stream
    norms_before: bool = True  # and so are their inputs
    norms_around_one: bool = False  # a norm multiplies with 1 + its weights; in GGUF files the 1 is added already
    scaled: tuple[str, ...] = ()
    """The fields among query_pre_attn_scalar, attn_logit_softcapping, final_logit_softcapping that count; where any do,
    embeddings are scaled too."""
    experts: ExpertNames | None = None  # in place of an MLP in some or all layers
    stacked: StackedExperts | None = None  # how experts lie in safetensors, where not each by itself
    expert_bias: bool = False  # of the router and of experts
    sigmoid_router: bool = False
    scored_router: bool = False  # use_expert_bias and routed_scaling_factor count
    choice_bias: str = ""  # what is added to its scores where experts are chosen
    beside: BesideNames | None = None  # experts stand beside MLPs
    shared_expert: bool = False  # beside those that are chosen
    shared_gate: str = ""  # the module whose sigmoid its output is multiplied with
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
    mamba: bool = False  # the same, of mamba
    tiled: bool = False  # as of `StateRule`
    joined: bool = False
    gated: bool = False  # q_proj gives each head a gate of what it attends to, behind its query
    gguf_modules: Mapping[str, str] = field(default_factory=dict)
    """Names of a layer's modules in GGUF, and in transformers, where they are others than `gguf_file` has."""

    @property
    def in_gguf(self) -> dict[str, str]:
        """All such names."""
        return {**(self.experts.in_gguf if self.experts else {}), **self.gguf_modules}

"""The properties in which families of models differ, and the sizes of parts that only some families have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field

NORM = "model.norm.weight"
"""The last norm."""
CONVOLUTION = "conv.conv"
"""The weights [hidden size, taps] of a layer's short convolution."""
OWN_HEAD = "mtp."
"""The prefix of the tensors of a block that predicts further tokens, inside a checkpoint (MTP)."""
DELTA, MAMBA = "linear_attn", "mamba"
"""Modules of layers that fold their inputs into a state: by the gated delta rule, and by Mamba-2."""

_GGUF_EXPERTS = ("gate_inp", "gate_exps", "up_exps", "down_exps")


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Modules of a layer: the router, and the modules of one expert, with {} for its number."""

    router: str
    gate: str
    up: str
    down: str

    @property
    def in_gguf(self) -> dict[str, str]:
        """The modules by their names in GGUF."""
        return {f"ffn_{part}": module for part, module in zip(_GGUF_EXPERTS, astuple(self), strict=True)}


@dataclass(frozen=True, slots=True)
class ParallelNames:
    """Vectors of a layer with experts and an MLP (Gemma 4): both have norms, and their outputs are added."""

    router_norm: str  # multiplied by hidden_size^(-1/2)
    norm: str  # of the experts' input
    after: str  # of their output
    after_mlp: str  # of the MLP's output
    scales: str  # factors of the experts' shares


@dataclass(frozen=True, slots=True)
class StackedExperts:
    """Tensors of all experts of a layer in safetensors: gate and up together, and down."""

    module: str
    transposed: bool  # matrices are [in, out]
    interleaved: bool  # outputs of gate and up alternate; otherwise gate's are first
    gate_up: str = "gate_up_proj"
    down: str = "down_proj"


@dataclass(frozen=True, slots=True)
class Clamp:
    """Bounds of gate and up (`docs/numerics.md`, clamped)."""

    slope: float
    limit: float


@dataclass(frozen=True, slots=True)
class Experts:
    """Experts (Shazeer et al. 2017): every row is computed by `chosen` of `count` MLPs of inner size `size`."""

    names: ExpertNames
    layers: tuple[bool, ...]  # which have experts in place of one MLP
    count: int
    chosen: int
    size: int
    normalised: bool  # shares of the chosen experts sum to one; otherwise shares of all do
    bias: bool = False  # of the router and of all modules
    sigmoid: bool = False  # a share is the sigmoid of its logit, and scales the expert's input
    scored: bool = False  # sigmoids of all logits replace the exponentials
    choice_bias: str = ""  # a vector that is added to scores only to choose experts, or none
    scale: float = 1.0  # of all shares
    shared: int = 0  # inner size of an expert for all rows, or 0
    shared_gate: str = ""  # the module by whose sigmoid that expert's output is multiplied, or none
    dense_mlp: bool = False  # the layer has an MLP too
    parallel: ParallelNames | None = None  # the layer has an MLP too, both with norms


@dataclass(frozen=True, slots=True)
class StateRule:
    """Layers that fold keys and values into a state, and their sizes: by the gated delta rule (Yang et al. 2024) or by
    Mamba-2 (Dao and Gu 2024, whose B, C and x are keys, queries and values).

    Each key head serves value_heads / key_heads value heads: adjacent ones, or, if `tiled`, every key_heads-th.
    """

    module: str  # DELTA or MAMBA
    layers: tuple[bool, ...]  # per layer of the model, whether it folds a state
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int  # of the convolutions of queries, keys and values
    biased: bool = False  # the convolutions have biases
    tiled: bool = False
    joined: bool = False  # in_proj_ba is one module, its outputs by key head, and so is in_proj_qkvz in safetensors
    converted: bool = False  # weights are in the form of llama.cpp's converter

    @property
    def delta(self) -> bool:
        """Whether the state's value of a key is subtracted from the new value first; Mamba-2 only adds."""
        return self.module == DELTA

    @property
    def vectors(self) -> dict[str, int]:
        """Sizes of the weights outside of linear layers and the convolution: shifts, rates, norm; skips of Mamba-2."""
        heads, norm = self.value_heads, self.value_dim if self.delta else self.values
        sizes = {"dt_bias": heads, "A_log": heads, "norm": norm} | ({} if self.delta else {"D": heads})
        return {f"{self.module}.{name}": size for name, size in sizes.items()}

    @property
    def convolution(self) -> str:
        """The module of weights [channels, taps]."""
        return f"{self.module}.conv1d"

    @property
    def projections(self) -> dict[str, int]:
        """Output sizes of the linear layers by their names."""
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
        """Elements of a token's queries, keys and values."""
        return 2 * self.keys + self.values

    @property
    def cached(self) -> int:
        """Elements of a token in the cache: `convolved` before the convolution, and one or two for each value head."""
        return self.convolved + (2 if self.delta else 1) * self.value_heads

    @property
    def folded(self) -> int:
        """Elements of a token that are folded: `convolved` after the convolution, a decay and a strength per head."""
        return self.convolved + 2 * self.value_heads

    @property
    def state(self) -> int:
        """Elements of a layer's state."""
        return self.key_dim * self.values


@dataclass(frozen=True, slots=True)
class Temperature:
    """A factor of queries at position p: 1 + scale * ln(1 + (p + ahead) div floor) (Nakanishi 2025)."""

    floor: int
    scale: float
    ahead: int = 1


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """Sizes of one layer's keys and values."""

    kv_heads: int
    head_dim: int
    tied_values: bool = False  # values equal keys before norm and rotation
    source: int | None = None  # the layer whose keys and values are read, if none are computed here


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of models. `name` is transformers' model type, and `TargetConfig.architecture`.

    Most flags state which fields of config.json apply to the family.
    """

    name: str
    architecture: str  # in config.json
    multimodal: str = ""  # architecture of checkpoints whose text part this family is
    gguf_name: str = ""  # general.architecture of a GGUF file; empty if these are not supported
    gguf_interleaved: bool = False  # GGUF files have rows of q and k in the order of an interleaved rotation
    qkv_bias: bool = False  # q, k and v always have biases and o never; otherwise attention_bias applies
    head_norms: bool = False  # each query and key head is normalised
    whole_norms: bool = False  # a norm is over all queries of a row, another over all keys
    windows: bool = True  # sliding_window applies; conversions leave it in families without windows, too
    unrotated_layers: bool = False  # no_rope_layers applies: layers without rotary position embeddings
    partial_rotation: bool = False  # partial_rotary_factor applies
    fused: bool = False  # queries, keys and values are one module, gate and up another
    fused_mlp: bool = False  # only gate and up are one module, and not in GGUF
    dense_mlp: bool = False  # layers with experts have an MLP too, of shared_intermediate_size
    activation: str = "silu"  # hidden_act, or hidden_activation
    sandwich_norms: bool = False  # outputs of attention and MLP are normalised before they are added to the stream
    norms_before: bool = True  # inputs of attention and MLP are normalised
    norms_around_one: bool = False  # a norm multiplies by 1 + its weights; in GGUF files the 1 is added already
    scaled: tuple[str, ...] = ()
    """The fields among query_pre_attn_scalar, attn_logit_softcapping, final_logit_softcapping that apply. If any does,
    embeddings are scaled too."""
    experts: ExpertNames | None = None  # in place of an MLP in some or all layers
    stacked: StackedExperts | None = None  # tensors of all experts in safetensors
    expert_bias: bool = False  # of the router and of experts
    sigmoid_router: bool = False
    scored_router: bool = False  # use_expert_bias and routed_scaling_factor apply
    choice_bias: str = ""  # the vector that is added to its scores to choose experts
    parallel: ParallelNames | None = None  # layers with experts have an MLP too, both with norms
    shared_expert: bool = False  # an expert for all rows
    shared_gate: str = ""  # the module by whose sigmoid its output is multiplied
    mlp: str = "mlp"  # the module with gate, up and down
    rotations_by_kind: bool = False  # layers with a window rotate by rope_theta without scaling
    interleaved: bool = False  # RoPE rotates elements 2i and 2i + 1, not i and i + n
    unit_head_norms: bool = False  # use_qk_norm applies: norms without weights of rotated heads
    chunks: bool = False  # attention_chunk_size applies
    rotated_windows: bool = False  # in models with windows, layers without a window are not rotated
    beta: bool = False  # llama_4_scaling_beta of rope_parameters applies: a temperature in all layers
    tempered: bool = False  # attn_temperature_tuning applies: a temperature in layers without rotation
    sinks: bool = False  # of attention
    clamped: bool = False  # swiglu_alpha and swiglu_limit apply
    quantised: tuple[str, ...] = ()  # supported quant_method of checkpoints
    yarn_truncated: bool = True  # truncation of yarn's ramp, which GGUF files lack
    query_scale: float = 0.0  # or 0 if it follows from the size of heads
    sizes_by_layer: bool = False  # per_layer_config applies; values are normalised, and layers have scalars
    gguf_wide_queries: int = 0  # layers of the model in GGUF whose query_pre_attn_scalar is hidden_size / heads
    names: Mapping[str, str] = field(default_factory=dict)
    """Modules and norms of a layer in published checkpoints, by Llama's names, if they differ."""
    final_norm: str = NORM
    multipliers: bool = False  # of embeddings, queries, residuals and logits apply
    convolved: bool = False  # layer_types applies: conv layers are gated short convolutions
    delta: bool = False  # layer_types applies: linear_attention layers fold a state
    mamba: bool = False  # layer_types applies: mamba layers fold a state
    tiled: bool = False  # as in `StateRule`
    joined: bool = False  # as in `StateRule`
    gated: bool = False  # q_proj has a gate of each head's output after its query
    own_head: bool = False  # checkpoints may contain a block that predicts further tokens
    gguf_modules: Mapping[str, str] = field(default_factory=dict)
    """Modules of a layer in transformers by their names in GGUF, if they differ from `gguf_file`'s."""

    @property
    def in_gguf(self) -> dict[str, str]:
        """`gguf_modules`, and the modules of experts."""
        return {**(self.experts.in_gguf if self.experts else {}), **self.gguf_modules}

"""The parts of a decoder layer: the one description that targets, adapters and readers of weights use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from services.generation.target.config import TargetConfig


class LayerSizes(Protocol):
    """Sizes and choices of decoder layers, as the configurations of models and of heads have them."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def norm_epsilon(self) -> float: ...
    @property
    def attention_bias(self) -> bool: ...
    @property
    def output_bias(self) -> bool: ...
    @property
    def mlp_bias(self) -> bool: ...
    @property
    def head_norms(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ModuleSpec:
    """A linear module, transformers' name without the layer's prefix; its weight is [outputs, inputs]."""

    name: str
    outputs: int
    inputs: int
    bias: bool


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """x += output(attention(norm(x))), then x += down(activation(gate(norm(x))) * up(norm(x))).

    Modules in one tuple have the same input and are computed together.
    """

    prefix: str
    attention_norm: str
    qkv: tuple[ModuleSpec, ...]
    head_norms: tuple[str, ...]  # of queries and keys, or none
    output: tuple[ModuleSpec, ...]
    mlp_norm: str
    gate_up: tuple[ModuleSpec, ...]
    down: tuple[ModuleSpec, ...]
    activation: str
    window: int  # keys visible to a query, itself included; 0 is all of them

    @property
    def linears(self) -> tuple[tuple[ModuleSpec, ...], ...]:
        return self.qkv, self.output, self.gate_up, self.down

    @property
    def modules(self) -> tuple[ModuleSpec, ...]:
        return tuple(module for linear in self.linears for module in linear)


EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


def layer_specs(config: TargetConfig) -> tuple[LayerSpec, ...]:
    """The layers of a model; families differ in biases, head norms and windows, which its configuration says."""
    return tuple(
        decoder_layer(config, f"model.layers.{number}.", inputs=config.hidden_size, window=config.windows[number])
        for number in range(config.layers)
    )


def decoder_layer(sizes: LayerSizes, prefix: str, *, inputs: int, window: int = 0) -> LayerSpec:
    """A layer whose attention reads so many inputs."""
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    attention, mlp = sizes.attention_bias, sizes.mlp_bias
    return LayerSpec(
        prefix=prefix,
        attention_norm="input_layernorm",
        qkv=(
            ModuleSpec("self_attn.q_proj", queries, inputs, attention),
            ModuleSpec("self_attn.k_proj", keys, inputs, attention),
            ModuleSpec("self_attn.v_proj", keys, inputs, attention),
        ),
        head_norms=("self_attn.q_norm", "self_attn.k_norm") if sizes.head_norms else (),
        output=(ModuleSpec("self_attn.o_proj", hidden, queries, sizes.output_bias),),
        mlp_norm="post_attention_layernorm",
        gate_up=(ModuleSpec("mlp.gate_proj", inner, hidden, mlp), ModuleSpec("mlp.up_proj", inner, hidden, mlp)),
        down=(ModuleSpec("mlp.down_proj", hidden, inner, mlp),),
        activation="silu",
        window=window,
    )

"""What a decoder layer is made of: the one description that targets, adapters and readers of weights use."""

from __future__ import annotations

from dataclasses import dataclass

from services.generation.target.config import TargetConfig


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
    """The layers of Llama, Mistral, Qwen2 and Qwen3, which differ in biases, head norms and windows."""
    return tuple(_layer(config, number) for number in range(config.layers))


def _layer(config: TargetConfig, number: int) -> LayerSpec:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim

    def module(name: str, outputs: int, inputs: int, bias: bool) -> ModuleSpec:
        return ModuleSpec(name, outputs, inputs, bias)

    attention, mlp = config.attention_bias, config.mlp_bias
    return LayerSpec(
        prefix=f"model.layers.{number}.",
        attention_norm="input_layernorm",
        qkv=(
            module("self_attn.q_proj", queries, hidden, attention),
            module("self_attn.k_proj", keys, hidden, attention),
            module("self_attn.v_proj", keys, hidden, attention),
        ),
        head_norms=("self_attn.q_norm", "self_attn.k_norm") if config.head_norms else (),
        output=(module("self_attn.o_proj", hidden, queries, config.output_bias),),
        mlp_norm="post_attention_layernorm",
        gate_up=(module("mlp.gate_proj", inner, hidden, mlp), module("mlp.up_proj", inner, hidden, mlp)),
        down=(module("mlp.down_proj", hidden, inner, mlp),),
        activation="silu",
        window=config.windows[number],
    )

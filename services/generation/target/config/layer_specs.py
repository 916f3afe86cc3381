"""The parts of a decoder layer: the one description that targets, adapters and readers of weights use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from services.generation.target.config.rope import NO_ROTATION, inverse_root
from services.generation.target.families import BY_NAME
from services.generation.target.family import BesideNames, Clamp, Experts, StateRule, Temperature

if TYPE_CHECKING:
    from services.generation.target.config.config import TargetConfig  # which takes transformers


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
class ExpertsSpec:
    """Experts in place of a layer's MLP or beside it: a router, and the modules of every expert."""

    router: ModuleSpec
    gate_up: tuple[tuple[ModuleSpec, ...], ...]
    down: tuple[tuple[ModuleSpec, ...], ...]
    chosen: int  # experts that compute a row
    normalised: bool
    sigmoid: bool
    beside: BesideNames | None
    scored: bool = False
    choice_bias: str = ""  # a vector [experts], or none
    scale: float = 1.0
    shared_gate: ModuleSpec | None = None  # the MLP's output is multiplied with its sigmoid

    @property
    def groups(self) -> tuple[tuple[ModuleSpec, ...], ...]:
        gate = ((self.shared_gate,),) if self.shared_gate else ()
        return (self.router,), *gate, *self.gate_up, *self.down


@dataclass(frozen=True, slots=True)
class LayerInputsSpec:
    """x += norm(projection(activation(gate(x)) * inputs)), with inputs that the layer has of every token."""

    gate: ModuleSpec
    projection: ModuleSpec
    norm: str


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """x += output(attention(norm(x))), then x += down(activation(gate(norm(x))) * up(norm(x))), each normalised again
    before it is added where there is a norm for it. A convolution or a state may be in place of attention.
    Experts are in place of the latter, or, where there is an MLP too, added after it or, with norms of their own, to
    it. At last come inputs of the layer itself.

    Modules in one tuple have the same input and are computed together; their outputs lie side by side, whether a model
    has them as one module or as several.
    """

    prefix: str
    attention_norm: str  # or none, where it reads the stream as it is
    qkv: tuple[ModuleSpec, ...]
    head_norms: tuple[str, ...]  # of queries and keys, or none
    output: tuple[ModuleSpec, ...]
    mlp_norm: str  # or none
    gate_up: tuple[ModuleSpec, ...]
    down: tuple[ModuleSpec, ...]
    activation: str
    window: int  # keys visible to a query, itself included; 0 is all of them
    scale: float  # what queries are multiplied with
    heads: int
    kv_heads: int
    head_dim: int
    source: int | None = None  # the layer whose keys and values are read, where none are computed here
    value_norms: bool = False  # values are normalised, without weights
    inputs: LayerInputsSpec | None = None
    scalar: str = ""  # what the stream is multiplied with at last, one number, or none
    chunk: int = 0  # positions of which a query sees those of its own chunk, or 0
    interleaved: bool = False  # as of `Rotation`
    temperature: Temperature | None = None  # what queries are multiplied with besides, by position
    unit_norms: bool = False  # heads of queries and keys are normalised, without weights
    cap: float = 0.0  # what scores are bent below, or 0
    sinks: str = ""  # a vector [heads] of further terms of the softmax, or none
    clamp: Clamp | None = None  # in place of the activation
    after_attention: str = ""  # the norm of attention's output, or none
    after_mlp: str = ""
    experts: ExpertsSpec | None = None
    residual: float = 1.0  # what is multiplied with what is added to the stream
    whole_norms: bool = False  # `head_norms` are of all queries of a row as one vector, and of all its keys
    taps: int = 0  # of a gated short convolution in place of attention: `qkv` and `output` are around it, or 0
    rule: StateRule | None = None  # of the state in place of attention: `qkv` and `output` are around it
    gated: bool = False  # what a head attends to is multiplied with the sigmoid of what q_proj gives behind its query

    @property
    def cached(self) -> tuple[int, int, int]:
        """Key heads, and sizes of a key and of a value in the cache; convolutions and states keep inputs as values."""
        if self.rule:
            return 1, 0, self.rule.cached
        return (1, 0, self.output[0].outputs) if self.taps else (self.kv_heads, self.head_dim, self.head_dim)

    @property
    def head_norm_sizes(self) -> dict[str, int]:
        """Sizes of the vectors in `head_norms`."""
        heads = (self.heads, self.kv_heads) if self.whole_norms else (1, 1)
        return {name: count * self.head_dim for name, count in zip(self.head_norms, heads, strict=False)}

    @property
    def norms(self) -> tuple[str, ...]:
        """Norms of the stream, by name without the layer's prefix."""
        found = [self.attention_norm, self.after_attention, self.mlp_norm, self.after_mlp]
        if self.experts and self.experts.beside:
            beside = self.experts.beside
            found += [beside.router_norm, beside.norm, beside.after, beside.after_mlp]
        return tuple(filter(None, (*found, self.inputs.norm if self.inputs else "")))

    @property
    def linears(self) -> tuple[tuple[ModuleSpec, ...], ...]:
        return self.qkv, self.output, self.gate_up, self.down

    @property
    def groups(self) -> tuple[tuple[ModuleSpec, ...], ...]:
        """`linears`, and those of experts."""
        inputs = ((self.inputs.gate,), (self.inputs.projection,)) if self.inputs else ()
        return *self.linears, *(self.experts.groups if self.experts else ()), *inputs

    @property
    def modules(self) -> tuple[ModuleSpec, ...]:
        return tuple(module for group in self.groups for module in group)

    def alternates(self, group: tuple[ModuleSpec, ...]) -> bool:
        """Whether a group is gate and up, of the layer or of an expert."""
        return group is self.gate_up or bool(self.experts and group in self.experts.gate_up)


LAYER_EMBEDDING, LAYER_PROJECTION, LAYER_NORM = (
    f"model.{name}.weight"
    for name in ("embed_tokens_per_layer", "per_layer_model_projection", "per_layer_projection_norm")
)
"""Tensors that the inputs of all layers are made of."""
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def layer_specs(config: TargetConfig) -> tuple[LayerSpec, ...]:
    """The layers of a model. Its configuration tells families apart."""
    return tuple(_target_layer(config, number) for number in range(config.layers))


def _target_layer(config: TargetConfig, number: int) -> LayerSpec:
    spec = _sized_layer(config, number)
    spec = replace(spec, window=config.windows[number], scale=config.query_scale, cap=config.attention_cap)
    spec = replace(spec, activation=config.activation, clamp=config.clamp, residual=config.residual_scale)
    spec = replace(spec, whole_norms=config.whole_norms)
    if config.chunks:
        spec = replace(spec, chunk=config.chunks[number])
    turns = config.rotations[number] != NO_ROTATION
    if not turns or BY_NAME[config.architecture].beta:
        spec = replace(spec, temperature=config.temperature)
    if turns:
        spec = replace(spec, unit_norms=config.unit_head_norms, interleaved=config.rotations[number].interleaved)
    if config.sinks:
        spec = replace(spec, sinks="self_attn.sinks")
    if config.sandwich_norms:
        spec = replace(
            spec,
            after_attention="post_attention_layernorm",
            mlp_norm="pre_feedforward_layernorm",
            after_mlp="post_feedforward_layernorm",
        )
    if not config.norms_before:
        spec = replace(spec, attention_norm="", mlp_norm="")
    spec = _with_inputs(_with_experts(_with_names(spec, config), config, number), config)
    return _with_state(_with_convolution(spec, config, number), config, number)


def _with_state(spec: LayerSpec, config: TargetConfig, number: int) -> LayerSpec:
    rule, hidden = config.rule, config.hidden_size
    if rule and rule.layers[number]:
        qkv = tuple(ModuleSpec(name, size, hidden, False) for name, size in rule.lines.items())
        output = (ModuleSpec(f"{rule.module}.out_proj", hidden, rule.values, False),)
        return replace(spec, qkv=qkv, head_norms=(), output=output, rule=rule)
    if not config.gated:
        return spec
    queries, *others = spec.qkv
    return replace(spec, qkv=(replace(queries, outputs=2 * queries.outputs), *others), gated=True)


def _with_convolution(spec: LayerSpec, config: TargetConfig, number: int) -> LayerSpec:
    hidden = config.hidden_size
    if not config.convolutions or not config.convolutions[number]:
        return spec
    qkv = (ModuleSpec("conv.in_proj", 3 * hidden, hidden, False),)
    output = (ModuleSpec("conv.out_proj", hidden, hidden, False),)
    return replace(spec, qkv=qkv, head_norms=(), output=output, taps=config.convolutions[number])


def _sized_layer(config: TargetConfig, number: int) -> LayerSpec:
    """A layer as Llama has it, with the sizes of its own."""
    own = config.heads_of(number)
    inner = config.mlp_sizes[number] if config.mlp_sizes else config.intermediate_size
    sizes = replace(config, kv_heads=own.kv_heads, head_dim=own.head_dim, intermediate_size=inner)
    spec = decoder_layer(sizes, f"model.layers.{number}.", inputs=config.hidden_size)
    spec = replace(spec, value_norms=config.value_norms, scalar="layer_scalar" if config.layer_scalars else "")
    queries, keys, values = spec.qkv
    if own.source is not None:
        return replace(spec, qkv=(queries,), head_norms=spec.head_norms[:1], source=own.source)
    return replace(spec, qkv=(queries, keys, keys if own.tied_values else values))


def _with_names(spec: LayerSpec, config: TargetConfig) -> LayerSpec:
    """Modules as the family has them: under other names, or put together."""
    family = BY_NAME[config.architecture]
    if config.fused:
        spec = replace(spec, qkv=(_fused("self_attn.qkv_proj", spec.qkv),))
    if config.fused or (family.fused_mlp and not (config.rule and config.rule.converted)):
        spec = replace(spec, gate_up=(_fused("mlp.gate_up_proj", spec.gate_up),))
    spec = replace(spec, gate_up=_inside(config.mlp, spec.gate_up), down=_inside(config.mlp, spec.down))
    names = family.names
    return _renamed(spec, names) if names else spec


def _renamed(spec: LayerSpec, names: Mapping[str, str]) -> LayerSpec:
    def modules(group: Sequence[ModuleSpec]) -> tuple[ModuleSpec, ...]:
        return tuple(replace(module, name=names.get(module.name, module.name)) for module in group)

    return replace(
        spec,
        attention_norm=names.get(spec.attention_norm, spec.attention_norm),
        qkv=modules(spec.qkv),
        head_norms=tuple(names.get(norm, norm) for norm in spec.head_norms),
        output=modules(spec.output),
        mlp_norm=names.get(spec.mlp_norm, spec.mlp_norm),
        gate_up=modules(spec.gate_up),
        down=modules(spec.down),
    )


def _with_inputs(spec: LayerSpec, config: TargetConfig) -> LayerSpec:
    size, hidden = config.layer_inputs, config.hidden_size
    if not size:
        return spec
    gate = ModuleSpec("per_layer_input_gate", size, hidden, False)
    projection = ModuleSpec("per_layer_projection", hidden, size, False)
    return replace(spec, inputs=LayerInputsSpec(gate, projection, "post_per_layer_input_norm"))


def _inside(module: str, parts: Sequence[ModuleSpec]) -> tuple[ModuleSpec, ...]:
    """Parts of an MLP as those of the module of this name."""
    return tuple(replace(part, name=f"{module}.{part.name.rpartition('.')[2]}") for part in parts)


def _with_experts(spec: LayerSpec, config: TargetConfig, number: int) -> LayerSpec:
    experts, hidden = config.experts, config.hidden_size
    if experts is None or not experts.layers[number]:
        return spec
    spec = replace(spec, experts=_experts(experts, hidden))
    if experts.beside or experts.dense_beside:
        return spec
    spec = replace(spec, gate_up=(), down=())
    if not experts.shared:
        return spec
    name = f"{config.mlp}.shared_expert"
    gate, up = (ModuleSpec(f"{name}.{part}_proj", experts.shared, hidden, False) for part in ("gate", "up"))
    down = ModuleSpec(f"{name}.down_proj", hidden, experts.shared, False)
    return replace(spec, gate_up=(gate, up), down=(down,))


def _experts(experts: Experts, hidden: int) -> ExpertsSpec:
    names, size = experts.names, experts.size

    def module(name: str, number: int, outputs: int, inputs: int) -> ModuleSpec:
        return ModuleSpec(name.format(number), outputs, inputs, experts.bias)

    return ExpertsSpec(
        router=ModuleSpec(names.router, experts.count, hidden, experts.bias),
        gate_up=tuple(
            (module(names.gate, n, size, hidden), module(names.up, n, size, hidden)) for n in range(experts.count)
        ),
        down=tuple((module(names.down, n, hidden, size),) for n in range(experts.count)),
        chosen=experts.chosen,
        normalised=experts.normalised,
        sigmoid=experts.sigmoid,
        beside=experts.beside,
        scored=experts.scored,
        choice_bias=experts.choice_bias,
        scale=experts.scale,
        shared_gate=ModuleSpec(experts.shared_gate, 1, hidden, False) if experts.shared_gate else None,
    )


def _fused(name: str, modules: Sequence[ModuleSpec]) -> ModuleSpec:
    """One module with the outputs of several."""
    return replace(modules[0], name=name, outputs=sum(module.outputs for module in modules))


def decoder_layer(sizes: LayerSizes, prefix: str, *, inputs: int) -> LayerSpec:
    """A layer as Llama has it, whose attention reads `inputs` inputs."""
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
        window=0,
        scale=inverse_root(sizes.head_dim),
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
    )

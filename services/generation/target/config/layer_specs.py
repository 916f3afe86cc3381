"""Descriptions of decoder layers, which targets, adapters and readers of weights share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from services.generation.target.config.rope import NO_ROTATION, inverse_root
from services.generation.target.families import BY_NAME
from services.generation.target.family import CONVOLUTION, Clamp, Experts, StateRule, Temperature

if TYPE_CHECKING:
    from services.generation.target.config.config import TargetConfig  # imports transformers


class LayerSizes(Protocol):
    """Sizes and options of decoder layers, in the configurations of models and of heads."""

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
    """A linear module, by transformers' name without the layer's prefix; its weight is [outputs, inputs]."""

    name: str
    outputs: int
    inputs: int
    bias: bool


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """Experts in place of a layer's MLP or in addition to it: a router, and the modules of every expert."""

    config: Experts
    router: ModuleSpec
    gate_up: tuple[tuple[ModuleSpec, ...], ...]
    down: tuple[tuple[ModuleSpec, ...], ...]
    shared_gate: ModuleSpec | None  # the MLP's output is multiplied by its sigmoid

    @property
    def groups(self) -> tuple[tuple[ModuleSpec, ...], ...]:
        gate = ((self.shared_gate,),) if self.shared_gate else ()
        return (self.router,), *gate, *self.gate_up, *self.down


@dataclass(frozen=True, slots=True)
class LayerInputsSpec:
    """x += norm(projection(activation(gate(x)) * inputs)), with an embedding of the token for this layer."""

    gate: ModuleSpec
    projection: ModuleSpec
    norm: str


@dataclass(frozen=True, slots=True)
class CachedSizes:
    """Sizes of a layer in the cache, in elements. Convolutions and states cache inputs, as values without keys."""

    kv_heads: int
    key: int
    value: int


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """A decoder layer: x += output(attention(norm(x))), then x += down(activation(gate(norm(x))) * up(norm(x))).

    Each sum may have a norm of the added part (`after_attention`, `after_mlp`). A convolution (`taps`) or a state
    (`rule`) may replace attention; experts may replace the MLP or be added to it. `inputs` come last.

    Modules in one tuple have the same input and are computed together. Their outputs are adjacent, whether a model has
    one module or several.
    """

    prefix: str
    attention_norm: str  # or none
    qkv: tuple[ModuleSpec, ...]
    head_norms: tuple[str, ...]  # of queries and keys, or none
    output: tuple[ModuleSpec, ...]
    mlp_norm: str  # or none
    gate_up: tuple[ModuleSpec, ...]
    down: tuple[ModuleSpec, ...]
    activation: str
    window: int  # keys visible to a query, itself included; 0 is all of them
    scale: float  # of queries
    heads: int
    kv_heads: int
    head_dim: int
    source: int | None = None  # the layer whose keys and values are read, if none are computed here
    value_norms: bool = False  # values are normalised, without weights
    inputs: LayerInputsSpec | None = None
    scalar: str = ""  # a number by which the stream is multiplied at the end, or none
    chunk: int = 0  # positions of an attention chunk, or 0
    interleaved: bool = False  # as in `Rotation`
    temperature: Temperature | None = None  # a further factor of queries, by position
    unit_norms: bool = False  # heads of queries and keys are normalised, without weights
    cap: float = 0.0  # soft cap of scores, or 0
    sinks: str = ""  # a vector [heads] of further terms of the softmax, or none
    clamp: Clamp | None = None  # in place of the activation
    after_attention: str = ""  # the norm of attention's output, or none
    after_mlp: str = ""
    experts: ExpertsSpec | None = None
    residual: float = 1.0  # factor of both sums' added parts
    whole_norms: bool = False  # `head_norms` are over all queries of a row, and over all its keys
    taps: int = 0  # of a gated short convolution between `qkv` and `output`, or 0
    rule: StateRule | None = None  # of a state between `qkv` and `output`
    gated: bool = False  # a head's output is multiplied by the sigmoid of q_proj's outputs after its query

    @property
    def cached(self) -> CachedSizes:
        if self.rule:
            return CachedSizes(1, 0, self.rule.cached)
        if self.taps:
            return CachedSizes(1, 0, self.output[0].outputs)
        return CachedSizes(self.kv_heads, self.head_dim, self.head_dim)

    @property
    def head_norm_sizes(self) -> dict[str, int]:
        """Sizes of the vectors in `head_norms`."""
        heads = (self.heads, self.kv_heads) if self.whole_norms else (1, 1)
        return {name: count * self.head_dim for name, count in zip(self.head_norms, heads, strict=False)}

    def shapes(self, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the layer's tensors; linear weights are [out, in]."""
        vectors = dict.fromkeys(self.norms, hidden_size) | self.head_norm_sizes
        if self.sinks:
            vectors[self.sinks] = self.heads
        shapes: dict[str, tuple[int, ...]] = {}
        if self.taps:
            shapes[f"{CONVOLUTION}.weight"] = (hidden_size, self.taps)
        if rule := self.rule:
            shapes[f"{rule.convolution}.weight"] = (rule.convolved, rule.taps)
            shapes |= {f"{rule.convolution}.bias": (rule.convolved,)} if rule.biased else {}
            vectors |= rule.vectors
        if self.scalar:
            vectors[self.scalar] = 1
        if self.experts and self.experts.config.choice_bias:
            vectors[self.experts.config.choice_bias] = self.experts.config.count
        if self.experts and self.experts.config.parallel:
            vectors[self.experts.config.parallel.scales] = self.experts.config.count
        for module in self.modules:
            shapes[f"{module.name}.weight"] = (module.outputs, module.inputs)
            if module.bias:
                shapes[f"{module.name}.bias"] = (module.outputs,)
        shapes |= {f"{name}.weight": (size,) for name, size in vectors.items()}
        return {f"{self.prefix}{name}": shape for name, shape in shapes.items()}

    @property
    def norms(self) -> tuple[str, ...]:
        """Norms of the stream, by name without the layer's prefix."""
        found = [self.attention_norm, self.after_attention, self.mlp_norm, self.after_mlp]
        if self.experts and self.experts.config.parallel:
            parallel = self.experts.config.parallel
            found += [parallel.router_norm, parallel.norm, parallel.after, parallel.after_mlp]
        return tuple(filter(None, (*found, self.inputs.norm if self.inputs else "")))

    @property
    def linears(self) -> tuple[tuple[ModuleSpec, ...], ...]:
        return self.qkv, self.output, self.gate_up, self.down

    @property
    def groups(self) -> tuple[tuple[ModuleSpec, ...], ...]:
        """`linears`, and the modules of experts and of layer inputs."""
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
    """The layers of a model of any family."""
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
        qkv = tuple(ModuleSpec(name, size, hidden, False) for name, size in rule.projections.items())
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
    """A layer as in Llama, with the sizes of layer `number`."""
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
    """Modules under the family's names, fused if the family fuses them."""
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
    """Parts of an MLP, renamed to be in the module of this name."""
    return tuple(replace(part, name=f"{module}.{part.name.rpartition('.')[2]}") for part in parts)


def _with_experts(spec: LayerSpec, config: TargetConfig, number: int) -> LayerSpec:
    experts, hidden = config.experts, config.hidden_size
    if experts is None or not experts.layers[number]:
        return spec
    spec = replace(spec, experts=_experts(experts, hidden))
    if experts.parallel or experts.dense_mlp:
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
        config=experts,
        router=ModuleSpec(names.router, experts.count, hidden, experts.bias),
        gate_up=tuple(
            (module(names.gate, n, size, hidden), module(names.up, n, size, hidden)) for n in range(experts.count)
        ),
        down=tuple((module(names.down, n, hidden, size),) for n in range(experts.count)),
        shared_gate=ModuleSpec(experts.shared_gate, 1, hidden, False) if experts.shared_gate else None,
    )


def _fused(name: str, modules: Sequence[ModuleSpec]) -> ModuleSpec:
    """One module with the outputs of several."""
    return replace(modules[0], name=name, outputs=sum(module.outputs for module in modules))


def decoder_layer(sizes: LayerSizes, prefix: str, *, inputs: int) -> LayerSpec:
    """A layer as in Llama, whose attention reads `inputs` inputs."""
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

"""A decoder layer in memory: packed matrices, norms, updates of adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.generation.target.adapters import Adapter
from services.generation.target.arrays import Float32
from services.generation.target.config.layer_specs import ExpertsSpec, LayerInputsSpec, LayerSpec, ModuleSpec
from services.generation.target.config.rope import decay_rates, inverse_root
from services.generation.target.errors import WeightsInvalid
from services.generation.target.family import CONVOLUTION, StateRule
from services.generation.target.kernels.attention.layout import LANES
from services.generation.target.kernels.storages import padded
from services.generation.target.program.matrices import (
    AdapterUpdates,
    Matrix,
    Pack,
    Read,
    alternating,
    pack_tensors,
    side_by_side,
    vector,
)


@dataclass(frozen=True, slots=True, eq=False)
class Mlp:
    """An MLP; panels of gate and up alternate."""

    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True, slots=True, eq=False)
class LayerInputs:
    """The weights of `LayerInputsSpec`."""

    gate: Matrix
    projection: Matrix
    norm: Float32


@dataclass(frozen=True, slots=True, eq=False)
class ParallelNorms:
    """Weights of the norms in `family.ParallelNames`; the router's are multiplied by its factor."""

    router: Float32
    norm: Float32
    after: Float32
    after_mlp: Float32


@dataclass(frozen=True, slots=True, eq=False)
class ExpertLayer:
    """A layer's router and experts."""

    spec: ExpertsSpec
    router: Matrix
    shared_gate: Matrix | None
    gate_up: list[Matrix]  # of every expert
    down: list[Matrix]  # of every expert
    scales: Float32  # of each expert's share
    bias: Float32  # added to each expert's score to choose experts
    parallel: ParallelNorms | None

    @property
    def matrices(self) -> list[Matrix]:
        """The matrices that a pass over one row reads."""
        gate = [self.shared_gate] if self.shared_gate else []
        return [self.router, *gate, *self.gate_up[: self.spec.config.chosen], *self.down[: self.spec.config.chosen]]


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """The vectors of a layer that folds a state."""

    rule: StateRule
    convolution: Float32  # [taps, convolved]
    bias: Float32  # [convolved]
    shifts: Float32  # [value heads]
    rates: Float32  # [value heads]
    norm: Float32  # [value size], of Mamba-2 [values]
    skips: Float32 | None  # [value heads], of Mamba-2


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """The weights of a `LayerSpec`; parts that a layer lacks are None."""

    spec: LayerSpec
    attention_norm: Float32 | None
    qkv: list[Matrix]
    head_norms: list[Float32]
    sinks: Float32 | None
    output: Matrix
    mlp_norm: Float32 | None
    mlp: Mlp | None
    experts: ExpertLayer | None
    after_attention: Float32 | None
    after_mlp: Float32 | None
    value_norm: Float32 | None
    scalar: float
    inputs: LayerInputs | None
    convolution: Float32 | None  # [taps, hidden size padded]
    state: State | None
    updates: tuple[AdapterUpdates, ...]  # of the four linear layers, in the order of `LayerSpec.linears`

    @property
    def matrices(self) -> list[Matrix]:
        """The matrices that a pass over one row reads."""
        mlp = [self.mlp.gate_up, self.mlp.down] if self.mlp else []
        inputs = [self.inputs.gate, self.inputs.projection] if self.inputs else []
        return [*self.qkv, self.output, *mlp, *(self.experts.matrices if self.experts else []), *inputs]


def load_layer(
    spec: LayerSpec,
    number: int,
    adapters: Sequence[Adapter],
    read: Read,
    norm_offset: float = 0.0,
    pack: Pack = pack_tensors,
) -> Layer:
    """Read and pack a layer. Raises WeightsInvalid for weights that are NaN or infinite."""

    def norm(name: str) -> Float32:
        return vector(read, f"{spec.prefix}{name}.weight", norm_offset)

    def updates(modules: tuple[ModuleSpec, ...], halves: bool) -> AdapterUpdates:
        return AdapterUpdates.of(adapters, number, modules, halves)

    ones = np.ones(spec.head_dim, np.float32)
    return Layer(
        spec=spec,
        attention_norm=norm(spec.attention_norm) if spec.attention_norm else None,
        qkv=side_by_side(spec.qkv, spec.prefix, read, pack),
        head_norms=[ones, ones] if spec.unit_norms else [norm(name) for name in spec.head_norms],
        sinks=vector(read, f"{spec.prefix}{spec.sinks}.weight") if spec.sinks else None,
        output=side_by_side(spec.output, spec.prefix, read, pack)[0],
        mlp_norm=norm(spec.mlp_norm) if spec.mlp_norm else None,
        mlp=_mlp(spec, read, pack) if spec.down else None,
        experts=_experts(spec.experts, spec.prefix, read, pack) if spec.experts else None,
        after_attention=norm(spec.after_attention) if spec.after_attention else None,
        after_mlp=norm(spec.after_mlp) if spec.after_mlp else None,
        value_norm=ones if spec.value_norms else None,
        inputs=_inputs(spec.inputs, spec.prefix, read, pack) if spec.inputs else None,
        scalar=float(vector(read, f"{spec.prefix}{spec.scalar}.weight")[0]) if spec.scalar else 1.0,
        convolution=_convolution(spec, read) if spec.taps else None,
        state=_state(spec.rule, spec.prefix, read) if spec.rule else None,
        updates=tuple(updates(modules, modules is spec.gate_up) for modules in spec.linears),
    )


def _convolution(spec: LayerSpec, read: Read) -> Float32:
    tensor = read(f"{spec.prefix}{CONVOLUTION}.weight")
    tensor.check_finite()
    values = tensor.values()
    weights = np.zeros((spec.taps, padded(len(values), LANES)), np.float32)
    weights[:, : len(values)] = values.T
    return weights


def _state(rule: StateRule, prefix: str, read: Read) -> State:
    tensor = read(f"{prefix}{rule.convolution}.weight")
    tensor.check_finite()
    bias = vector(read, f"{prefix}{rule.convolution}.bias") if rule.biased else np.zeros(rule.convolved, np.float32)
    names = [f"{prefix}{name}.weight" for name in rule.vectors]
    shifts, written, norm, *skips = (vector(read, name) for name in names)
    rates = decay_rates(written, converted=rule.converted)
    if not (np.isfinite(rates) & (rates >= 0)).all():
        raise WeightsInvalid(
            f"weights: {names[1]} gives a decay rate that is negative or infinite; download the file again or use "
            "another model"
        )
    weights = np.ascontiguousarray(tensor.values().T)
    return State(rule, weights, bias, shifts, rates, norm, skips[0] if skips else None)


def _inputs(spec: LayerInputsSpec, prefix: str, read: Read, pack: Pack) -> LayerInputs:
    gate, projection = (side_by_side((module,), prefix, read, pack)[0] for module in (spec.gate, spec.projection))
    return LayerInputs(gate, projection, vector(read, f"{prefix}{spec.norm}.weight"))


def _mlp(spec: LayerSpec, read: Read, pack: Pack) -> Mlp:
    gate_up = alternating(spec.gate_up, spec.prefix, read, pack)
    return Mlp(gate_up, side_by_side(spec.down, spec.prefix, read, pack)[0])


def _experts(spec: ExpertsSpec, prefix: str, read: Read, pack: Pack) -> ExpertLayer:
    config, parallel = spec.config, None
    names, scales = config.parallel, np.full(config.count, config.scale, np.float32)
    if names:
        router, norm, after, after_mlp = (
            vector(read, f"{prefix}{name}.weight")
            for name in (names.router_norm, names.norm, names.after, names.after_mlp)
        )
        parallel = ParallelNorms(router * np.float32(inverse_root(spec.router.inputs)), norm, after, after_mlp)
        scales = vector(read, f"{prefix}{names.scales}.weight")
    return ExpertLayer(
        spec=spec,
        scales=scales,
        bias=vector(read, f"{prefix}{config.choice_bias}.weight") if config.choice_bias else np.zeros_like(scales),
        parallel=parallel,
        router=side_by_side((spec.router,), prefix, read, pack)[0],
        shared_gate=side_by_side((spec.shared_gate,), prefix, read, pack)[0] if spec.shared_gate else None,
        gate_up=[alternating(modules, prefix, read, pack) for modules in spec.gate_up],
        down=[side_by_side(modules, prefix, read, pack)[0] for modules in spec.down],
    )

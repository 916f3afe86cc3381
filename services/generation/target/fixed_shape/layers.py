"""One decoder layer on the device: the weights of its linear layers and norms, and the updates of adapters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import gelu, silu

from services.generation.target.adapters.adapter import Adapter
from services.generation.target.config.layer_specs import LayerSpec, ModuleSpec
from services.generation.target.fixed_shape.masked_updates import MaskedSum
from services.generation.target.weights.checkpoint import Checkpoint

_ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": silu,
    "gelu": lambda x: gelu(x, approximate="tanh"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """y = x W^T + b by the device's own matrix product."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Updates:
    qkv: MaskedSum
    output: MaskedSum
    gate_up: MaskedSum
    down: MaskedSum


@dataclass(frozen=True, slots=True)
class Layer:
    attention_norm: torch.Tensor
    qkv: Linear
    head_norms: tuple[torch.Tensor, torch.Tensor] | None
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    after_attention: torch.Tensor | None
    after_mlp: torch.Tensor | None
    activation: Callable[[torch.Tensor], torch.Tensor]
    updates: Updates


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """Reads a checkpoint's tensors to a device, in one dtype."""

    checkpoint: Checkpoint
    device: torch.device
    dtype: torch.dtype
    norm_offset: float

    def tensor(self, name: str) -> torch.Tensor:
        return self.checkpoint.read(name, self.dtype).to(self.device)

    def norm(self, name: str) -> torch.Tensor:
        """In float32, as norms are computed."""
        return self.checkpoint.read(name).to(self.device) + self.norm_offset

    def layer(self, spec: LayerSpec, number: int, adapters: Sequence[Adapter]) -> Layer:
        def vector(name: str) -> torch.Tensor:
            return self.norm(f"{spec.prefix}{name}.weight")

        def updates(modules: Sequence[ModuleSpec]) -> MaskedSum:
            return MaskedSum(adapters, number, modules, self.device, self.dtype)

        return Layer(
            attention_norm=vector(spec.attention_norm),
            qkv=self._linear(spec.qkv, spec.prefix),
            head_norms=(vector(spec.head_norms[0]), vector(spec.head_norms[1])) if spec.head_norms else None,
            output=self._linear(spec.output, spec.prefix),
            mlp_norm=vector(spec.mlp_norm),
            gate_up=self._linear(spec.gate_up, spec.prefix),
            down=self._linear(spec.down, spec.prefix),
            after_attention=vector(spec.after_attention) if spec.after_attention else None,
            after_mlp=vector(spec.after_mlp) if spec.after_mlp else None,
            activation=_ACTIVATIONS[spec.activation],
            updates=Updates(*(updates(modules) for modules in spec.linears)),
        )

    def _linear(self, modules: Sequence[ModuleSpec], prefix: str) -> Linear:
        weights = torch.cat([self.tensor(f"{prefix}{module.name}.weight") for module in modules])
        if not any(module.bias for module in modules):
            return Linear(weights)
        return Linear(weights, torch.cat([self._bias(module, prefix) for module in modules]))

    def _bias(self, module: ModuleSpec, prefix: str) -> torch.Tensor:
        if module.bias:
            return self.tensor(f"{prefix}{module.name}.bias")
        return torch.zeros(module.outputs, dtype=self.dtype, device=self.device)

"""One decoder layer on the device: the weights of its linear layers and norms, and the updates of adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from services.generation.target.adapters.adapter import Adapter
from services.generation.target.families.layers import LayerSpec, ModuleSpec
from services.generation.target.fixed_shape.masked_updates import MaskedSum
from services.generation.target.weights.checkpoint import Checkpoint


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
    updates: Updates
    window: int


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """Reads a checkpoint's tensors to a device, in one dtype."""

    checkpoint: Checkpoint
    device: torch.device
    dtype: torch.dtype

    def tensor(self, name: str) -> torch.Tensor:
        return self.checkpoint.read(name, self.dtype).to(self.device)

    def layer(self, spec: LayerSpec, number: int, adapters: Sequence[Adapter]) -> Layer:
        def vector(name: str) -> torch.Tensor:
            return self.tensor(f"{spec.prefix}{name}.weight")

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
            updates=Updates(*(updates(modules) for modules in spec.linears)),
            window=spec.window,
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

"""The learning rate of a run, and the optimisers: Muon for matrices, AdamW for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from services.training.head.muon import Muon

Clock = Callable[[], float]

_WARM_UP = 0.01
_DECAY_FROM = 0.3
_LEAST_WARM_UP = 0.05
_LARGEST_GRADIENT_NORM = 1.0


def rate_factor(fraction: float, decay_from: float = _DECAY_FROM) -> float:
    """Short linear warm-up, a plateau up to `decay_from` of the run, then a long linear decay to zero."""
    if fraction < _WARM_UP:
        return max(fraction / _WARM_UP, _LEAST_WARM_UP)
    if fraction < decay_from:
        return 1.0
    return max(0.0, (1.0 - fraction) / (1.0 - decay_from))


class Optimiser:
    """Both under one schedule."""

    def __init__(
        self,
        model: nn.Module,
        matrix_rate: float,
        vector_rate: float,
        vocabulary: str = "lm_head",
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        """`vocabulary` is part of the names of matrices over a vocabulary, `dtype` that of Muon's products."""
        named = list(model.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and vocabulary not in name]
        others = [p for name, p in named if p.ndim != 2 or vocabulary in name]
        self._parameters = [*matrices, *others]
        self._parts: dict[str, tuple[torch.optim.Optimizer, float]] = {
            "muon": (Muon(matrices, matrix_rate, dtype), matrix_rate),
            "adamw": (torch.optim.AdamW(others, lr=vector_rate, betas=(0.9, 0.95), weight_decay=0.0), vector_rate),
        }

    def step(self, factor: float) -> None:
        """Apply the gradients at `factor` times the learning rates, then clear them."""
        torch.nn.utils.clip_grad_norm_(self._parameters, _LARGEST_GRADIENT_NORM)
        for part, rate in self._parts.values():
            for group in part.param_groups:
                group["lr"] = rate * factor
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, (part, _) in self._parts.items()}

    def restore(self, state: dict[str, Any]) -> None:
        for name, (part, _) in self._parts.items():
            part.load_state_dict(state[name])

"""Muon for the layers' matrices, AdamW for matrices over a vocabulary and for norms."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_LARGEST_GRADIENT_NORM = 1.0


class Optimiser:
    """Both under one schedule (Muon: Jordan et al. 2024, as built into torch)."""

    def __init__(self, model: nn.Module, matrix_rate: float, vector_rate: float, vocabulary: str = "lm_head") -> None:
        """`vocabulary` is part of the names of matrices over a vocabulary."""
        named = list(model.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and vocabulary not in name]
        others = [p for name, p in named if p.ndim != 2 or vocabulary in name]
        self._parameters = [*matrices, *others]
        self._parts: dict[str, tuple[torch.optim.Optimizer, float]] = {
            "muon": (torch.optim.Muon(matrices, lr=matrix_rate, weight_decay=0.01), matrix_rate),
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

"""Muon for the hidden matrices, AdamW for embeddings and norms."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

MUON_RATE = 0.01
ADAMW_RATE = 2e-3
_LARGEST_GRADIENT_NORM = 1.0


class Optimiser:
    """Both optimisers under one schedule (Muon: Jordan et al. 2024, as built into torch)."""

    def __init__(self, model: nn.Module) -> None:
        hidden = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
        chosen = {id(p) for p in hidden}
        others = [p for p in model.parameters() if id(p) not in chosen]
        self._parameters = [*hidden, *others]
        self._parts: dict[str, tuple[torch.optim.Optimizer, float]] = {
            "muon": (torch.optim.Muon(hidden, lr=MUON_RATE, weight_decay=0.01), MUON_RATE),
            "adamw": (torch.optim.AdamW(others, lr=ADAMW_RATE, betas=(0.9, 0.95), weight_decay=0.0), ADAMW_RATE),
        }

    def step(self, factor: float) -> None:
        """Apply the gradients at `factor` times the base learning rates, then clear them."""
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

"""Muon (Jordan et al. 2024): momentum whose matrices are orthogonalised before they are applied."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_MOMENTUM = 0.95
_WEIGHT_DECAY = 0.01
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_LEAST_NORM = 1e-7


class Muon(torch.optim.Optimizer):
    """torch's Muon, to the bit in bfloat16. It knows bfloat16 only, which most CPUs multiply ten times slower."""

    def __init__(self, matrices: Iterable[nn.Parameter], rate: float, dtype: torch.dtype) -> None:
        """`dtype` of the orthogonalisation."""
        super().__init__(matrices, {"lr": rate})
        self._dtype = dtype

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for matrix in group["params"]:
                momentum = self.state[matrix].setdefault("momentum_buffer", torch.zeros_like(matrix))
                momentum.lerp_(matrix.grad, 1 - _MOMENTUM)
                update = orthogonalised(matrix.grad.lerp(momentum, _MOMENTUM).to(self._dtype))
                matrix.mul_(1 - group["lr"] * _WEIGHT_DECAY)
                matrix.add_(update, alpha=-group["lr"] * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5)


def orthogonalised(matrix: Tensor) -> Tensor:
    """About the nearest matrix whose singular values are 1, by Newton and Schulz's iteration."""
    tall = matrix.shape[0] > matrix.shape[1]
    wide = matrix.T if tall else matrix
    wide = wide / wide.norm().clamp(min=_LEAST_NORM)
    first, third, fifth = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=third, alpha=fifth), wide, beta=first)
    return wide.T if tall else wide

"""Muon (Jordan et al. 2024): momentum whose matrices are orthogonalised before they are applied."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

_MOMENTUM = 0.95
_WEIGHT_DECAY = 0.01
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_LEAST_NORM = 1e-7


class Muon(torch.optim.Optimizer):
    """torch's Muon, to the bit in bfloat16. That knows bfloat16 only, a slow type on many CPUs."""

    def __init__(self, matrices: Iterable[nn.Parameter], rate: float, dtype: torch.dtype) -> None:
        """`dtype` of the orthogonalisation."""
        super().__init__(matrices, {"lr": rate})
        self._dtype = dtype
        together = dist.is_initialized()
        self._rank, self._processes = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            updates = [self._update(number, matrix) for number, matrix in enumerate(group["params"])]
            for number, (matrix, update) in enumerate(zip(group["params"], updates, strict=True)):
                if self._processes > 1:
                    dist.broadcast(update, number % self._processes)
                matrix.mul_(1 - group["lr"] * _WEIGHT_DECAY)
                matrix.add_(update, alpha=-group["lr"] * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5)

    def _update(self, number: int, matrix: Tensor) -> Tensor:
        """Gradients are the same in all processes, so each orthogonalises its share; the rest is room to receive."""
        momentum = self.state[matrix].setdefault("momentum_buffer", torch.zeros_like(matrix))
        assert matrix.grad is not None
        momentum.lerp_(matrix.grad, 1 - _MOMENTUM)
        if number % self._processes != self._rank:
            return torch.empty_like(matrix)
        return orthogonalised(matrix.grad.lerp(momentum, _MOMENTUM).to(self._dtype)).to(matrix.dtype).contiguous()


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

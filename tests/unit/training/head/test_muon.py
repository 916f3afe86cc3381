"""Muon is torch's in bfloat16, and orthogonalises in float32 too."""

from __future__ import annotations

import torch

from services.training.trainer import Muon, orthogonalised


def _run(make) -> torch.Tensor:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(24, 16))
    optimiser = make([weight])
    for _ in range(4):
        weight.grad = torch.randn(24, 16)
        optimiser.step()
    return weight.detach()


def test_in_bfloat16_it_is_torch_s() -> None:
    ours = _run(lambda weights: Muon(weights, 0.02, torch.bfloat16))
    theirs = _run(lambda weights: torch.optim.Muon(weights, lr=0.02, weight_decay=0.01))
    assert torch.equal(ours, theirs)


def test_singular_values_come_near_one_in_tall_and_wide_matrices() -> None:
    torch.manual_seed(0)
    for shape in ((24, 16), (16, 24)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape)))
        assert values.min() > 0.5
        assert values.max() < 1.3

"""`docs/numerics.md`, Experts: which of them compute a row, and how their outputs are mixed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from services.generation.target.reference.operations import ONE, add, exp, fma

Float32 = NDArray[np.float32]


@np.errstate(all="ignore")
def routed(logits: Float32, chosen: int, normalised: bool, sigmoid: bool = False) -> tuple[list[int], Float32]:
    """Of the router's logits [experts] of one row: the experts that compute it, by rank, and their shares [chosen]."""
    ranked = np.argsort(-logits, kind="stable")[:chosen]
    if sigmoid:
        return ranked.tolist(), ONE / (ONE + exp(-logits[ranked]))
    weights = exp(logits - logits[ranked[0]])
    total = np.zeros((), np.float32)
    for weight in weights[ranked] if normalised else weights:
        total = add(total, weight)
    return ranked.tolist(), weights[ranked] / total


def mixed(outputs: Float32, shares: Float32) -> Float32:
    """Outputs [chosen, n] of a row's experts, by rank: [n]."""
    total = np.zeros(outputs.shape[1], np.float32)
    for output, share in zip(outputs, shares, strict=True):
        total = fma(share, output, total)
    return total

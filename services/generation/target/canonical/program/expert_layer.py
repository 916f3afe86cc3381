"""The experts of a layer in packed form, and what a pass over them works in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.generation.target.canonical.kernels.storages import PANEL, padded
from services.generation.target.canonical.program.matrices import Matrix, Read, alternating, side_by_side, vector
from services.generation.target.config.layer_specs import ExpertsSpec
from services.generation.target.families import Experts
from services.generation.target.roots import inverse_root

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class BesideNorms:
    """Weights of norms, as `experts.BesideNames` has them; that of the router is multiplied already."""

    router: Float32
    norm: Float32
    after: Float32
    after_mlp: Float32


@dataclass(frozen=True, slots=True, eq=False)
class ExpertLayer:
    """`gate_up` and `down` of every expert."""

    spec: ExpertsSpec
    router: Matrix
    gate_up: list[Matrix]
    down: list[Matrix]
    scales: Float32  # of each expert's share
    beside: BesideNorms | None

    @property
    def matrices(self) -> list[Matrix]:
        """As many as a pass over one row reads."""
        return [self.router, *self.gate_up[: self.spec.chosen], *self.down[: self.spec.chosen]]


def load_experts(spec: ExpertsSpec, prefix: str, read: Read) -> ExpertLayer:
    """Read and pack. Raises WeightsInvalid for weights that are NaN or infinite."""
    names, beside, scales = spec.beside, None, np.ones(len(spec.down), np.float32)
    if names:
        router, norm, after, after_mlp = (
            vector(read, f"{prefix}{name}.weight")
            for name in (names.router_norm, names.norm, names.after, names.after_mlp)
        )
        beside = BesideNorms(router * np.float32(inverse_root(spec.router.inputs)), norm, after, after_mlp)
        scales = vector(read, f"{prefix}{names.scales}.weight")
    return ExpertLayer(
        spec=spec,
        scales=scales,
        beside=beside,
        router=side_by_side((spec.router,), prefix, read)[0],
        gate_up=[alternating(modules, prefix, read) for modules in spec.gate_up],
        down=[side_by_side(modules, prefix, read)[0] for modules in spec.down],
    )


class ExpertBuffers:
    """Of up to `pairs` pairs of a row and an expert (`kernels.experts`); lines are sorted by expert."""

    def __init__(self, experts: Experts, hidden: int, rows: int, lines: Callable[[int, int], Float32]) -> None:
        """`lines(count, size)` are so many lines of zeros."""
        pairs, inner = rows * experts.chosen, padded(experts.size, PANEL)
        self.logits = lines(rows, experts.count)
        self.x, self.y = lines(pairs, hidden), lines(pairs, hidden)
        self.gate_up, self.inner = lines(pairs, 2 * inner), lines(pairs, inner)
        self.mixed = lines(rows, hidden)
        self.picks, self.places = np.zeros(pairs, np.int64), np.zeros(pairs, np.int64)
        self.shares, self.ones = np.zeros(pairs, np.float32), np.ones(pairs, np.float32)
        self.starts, self.next = np.zeros(experts.count + 1, np.int64), np.zeros(experts.count, np.int64)

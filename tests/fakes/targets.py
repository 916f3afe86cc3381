"""Targets for tests: real ones with a fault put in. They implement the production Protocol."""

from __future__ import annotations

import numpy as np

from services.generation.target.blocks import BlockPool
from services.generation.target.config import TargetConfig
from services.generation.target.rows import Rows
from services.generation.target.target import Kernels, Logits, Target


class WidthDependentTarget:
    """A real target whose logits, from some position on, depend on how many rows the pass has: what kolm must find.

    With `honest_below` at 0 the probe sees it; above the probe's history it passes the probe and shows up later.
    """

    def __init__(self, target: Target, honest_below: int = 0) -> None:
        self._target = target
        self._honest_below = honest_below
        self.config: TargetConfig = target.config
        self.blocks: BlockPool = target.blocks
        self.base_cid = target.base_cid
        self.tokenizer_cid = target.tokenizer_cid
        self.kernels: Kernels = target.kernels

    def forward(self, rows: Rows) -> Logits:
        logits = self._target.forward(rows)
        if len(rows) == 1:
            return logits
        wrong = np.flatnonzero(rows.positions[rows.wanted] >= self._honest_below)
        logits = logits.copy()
        logits[wrong] = logits[wrong][:, ::-1]
        return logits

    def move(self, sources: list[int], targets: list[int]) -> None:
        self._target.move(sources, targets)

"""Budgets in which every row costs the same."""

from __future__ import annotations

import numpy as np

from services.generation.engine.cost import MARGIN
from services.generation.engine.drafter import Budget

_ROW = 1e-3  # seconds


def budget(nodes: int, depth: int, breakeven: float) -> Budget:
    """`breakeven` is the chance of acceptance from which a node is worth its row."""
    return Budget(depth, MARGIN * _ROW * (1 / breakeven + np.arange(nodes + 1)))

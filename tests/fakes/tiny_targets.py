"""Tiny models on the CPU, and what they make of one short text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from services.generation.target.arrays import Float32
from services.generation.target.config.config import read_config
from services.generation.target.cpu import CpuTarget
from services.generation.target.rows import RowsBuilder
from services.generation.target.weights import open_weights

TOKENS = [(7 * i * i + 3 * i) % 384 for i in range(90)]


def target_of(path: Path, **options: Any) -> CpuTarget:
    return CpuTarget(read_config(path), open_weights(path), 24, "", "", **options)


def logits_of(target: CpuTarget, widths: Sequence[int] = (len(TOKENS),)) -> Float32:
    """Logits of TOKENS, so many in each pass."""
    table: list[int] = []
    target.blocks.extend(table, len(TOKENS))
    logits, start = [], 0
    for width in widths:
        rows = RowsBuilder()
        rows.add_tree(table, start, TOKENS[start : start + width], range(-1, width - 1))
        logits.append(target.forward(rows.build()).logits.copy())
        start += width
    target.blocks.release(table)
    return np.concatenate(logits)

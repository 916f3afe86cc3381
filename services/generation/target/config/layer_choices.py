"""Differences between layers of one model, as its configuration has them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Temperature:
    """Queries at position p are multiplied with 1 + scale * ln(1 + (p + 1) div floor) (Nakanishi 2025)."""

    floor: int
    scale: float


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """Of one layer's keys and values."""

    kv_heads: int
    head_dim: int
    tied_values: bool = False  # values equal keys before norm and rotation
    source: int | None = None  # the layer whose keys and values are read; none are computed here

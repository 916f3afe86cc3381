"""The ledger's results as curves: throughput and latency over the number of clients, and the cost as the log grows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

_COLOURS = {"sqlite": "#1f6fb2", "postgresql": "#c2571a"}


def draw(results: dict[str, Any], path: Path) -> None:
    """Three panels, written as PNG."""
    figure, axes = plt.subplots(3, 1, figsize=(8, 9), layout="constrained")
    for store, found in results.items():
        colour = _COLOURS[store]
        _curve(axes[0], found["clients"], "clients", "appends_per_second", store, colour)
        _curve(axes[1], found["clients"], "clients", "p99_ms", store, colour)
        _curve(axes[2], found["growth"], "entries", "server_ms_per_append", store, colour)
    for axis, across, up in zip(
        axes,
        ("concurrent clients", "concurrent clients", "entries in the log"),
        ("durable appends/s", "99th percentile, ms", "server CPU, ms an append"),
        strict=True,
    ):
        axis.set(xscale="log", xlabel=across, ylabel=up)
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _curve(axis: Any, rows: Sequence[dict[str, Any]], across: str, up: str, label: str, colour: str) -> None:
    shown = [(row[across], row[up]) for row in rows if up in row]
    axis.plot(*zip(*shown, strict=True), marker="o", color=colour, label=label)

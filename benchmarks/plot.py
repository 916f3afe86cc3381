"""The decoding results as bars: tokens per second, by domain, for each temperature and batch size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

_COLOURS = {
    "transformers generate": "#9aa5b1",
    "transformers prompt lookup": "#616e7c",
    "kolm off": "#7bb3e0",
    "kolm lookahead": "#1f6fb2",
    "kolm eagle3": "#0b3c66",
}
_METHODS = {
    "prompt lookup": "#9aa5b1",
    "lookahead": "#7bb3e0",
    "rest": "#2a9d8f",
    "draft": "#e9c46a",
    "eagle3": "#1f6fb2",
    "auto": "#0b3c66",
}

CONTENDERS = tuple(_COLOURS)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """One panel for each temperature and batch size, written as PNG."""
    panels = sorted({(row["batch"], row["temperature"]) for row in rows})
    figure, axes = plt.subplots(len(panels), 1, figsize=(9, 2.6 * len(panels)), layout="constrained")
    for axis, (batch, temperature) in zip(axes, panels, strict=True):
        shown = [row for row in rows if (row["batch"], row["temperature"]) == (batch, temperature)]
        _panel(axis, shown)
        axis.set_title(f"batch {batch}, temperature {temperature}", loc="left", fontsize=10)
    axes[0].legend(frameon=False, ncols=5, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1.15))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _panel(axis: Any, rows: list[dict[str, Any]]) -> None:
    width = 0.8 / len(_COLOURS)
    for number, (name, colour) in enumerate(_COLOURS.items()):
        heights = [row["tokens_per_second"].get(name, 0.0) for row in rows]
        places = [place + (number - (len(_COLOURS) - 1) / 2) * width for place in range(len(rows))]
        axis.bar(places, heights, width * 0.92, color=colour, label=name)
        for place, height in zip(places, heights, strict=True):
            if height:
                axis.annotate(f"{height:.0f}", (place, height), ha="center", va="bottom", fontsize=7)
    axis.set_xticks(range(len(rows)), [row["domain"] for row in rows])
    axis.set_ylabel("tokens/s")
    axis.spines[["top", "right"]].set_visible(False)


def draw_methods(rows: list[dict[str, Any]], path: Path) -> None:
    """Speed over off by method and domain, one panel for each temperature, written as PNG."""
    temperatures = sorted({row["temperature"] for row in rows})
    figure, axes = plt.subplots(len(temperatures), 1, figsize=(9, 2.8 * len(temperatures)), layout="constrained")
    for axis, temperature in zip(axes, temperatures, strict=True):
        shown = [row for row in rows if row["temperature"] == temperature]
        _speedups(axis, shown)
        axis.set_title(f"temperature {temperature}", loc="left", fontsize=10)
    axes[0].legend(frameon=False, ncols=len(_METHODS), fontsize=8, loc="lower left", bbox_to_anchor=(0, 1.12))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _speedups(axis: Any, rows: list[dict[str, Any]]) -> None:
    names = [name for name in _METHODS if any(name in row for row in rows)]
    width = 0.84 / len(names)
    for number, name in enumerate(names):
        heights = [row[name]["over off"] for row in rows]
        places = [place + (number - (len(names) - 1) / 2) * width for place in range(len(rows))]
        axis.bar(places, heights, width * 0.92, color=_METHODS[name], label=name)
        for place, height in zip(places, heights, strict=True):
            axis.annotate(f"{height:.2f}", (place, height), ha="center", va="bottom", fontsize=6)
    axis.axhline(1.0, color="#444444", linewidth=0.8, linestyle=":")
    axis.set_xticks(range(len(rows)), [row["domain"] for row in rows])
    axis.set_ylabel("times off")
    axis.spines[["top", "right"]].set_visible(False)


def draw_retrieval(rows: list[dict[str, Any]], path: Path) -> None:
    """Lookup latency and build time over the size of the corpus, written as PNG."""
    figure, (latency, building) = plt.subplots(1, 2, figsize=(9, 2.8), layout="constrained")
    tokens = [row["tokens"] / 1e6 for row in rows]
    for name, style in (("median", "o-"), ("p99", "s--")):
        latency.plot(tokens, [row[f"lookup_{name}_us"] for row in rows], style, color="#1f6fb2", label=name)
    latency.set(xlabel="million tokens", ylabel="lookup, µs", ylim=(0, None))
    latency.legend(frameon=False)
    building.plot(tokens, [row["build_seconds"] for row in rows], "o-", color="#1f6fb2")
    building.set(xlabel="million tokens", ylabel="build, s", ylim=(0, None))
    figure.savefig(path, dpi=120)
    plt.close(figure)

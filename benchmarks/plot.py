"""Plots of the results, as PNG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

_PEERS = {"kolm off": "#1f6fb2", "llama.cpp": "#e9c46a", "transformers generate": "#9aa5b1"}


def draw_real(rows: list[dict[str, Any]], path: Path) -> None:
    """Milliseconds a token by storage of the weights: decoding, and reading a prompt."""
    titles = {"decoding": "a generated token", "prompts": "a token of a prompt"}
    with _panels(path, list(titles.values())) as axes:
        for axis, key in zip(axes, titles, strict=True):
            bars = {name: [row[key]["ms a token"].get(name) for row in rows] for name in _PEERS}
            _bars(axis, [row["storage"] for row in rows], bars, _PEERS, "{:.2f}")
            axis.set_ylabel("milliseconds")


@contextmanager
def _panels(path: Path, titles: Sequence[str]) -> Iterator[Sequence[Any]]:
    """A titled panel for each, one above the other with one legend; written as PNG at the end."""
    figure, axes = plt.subplots(len(titles), 1, figsize=(9, 2.7 * len(titles)), layout="constrained")
    yield axes
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, loc="left", fontsize=10)
    axes[0].legend(frameon=False, ncols=6, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1.14))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _bars(
    axis: Any, groups: Sequence[str], bars: dict[str, list[float | None]], colours: dict[str, str], form: str
) -> None:
    """Bars of each name side by side within each group, their heights written above; None leaves a gap."""
    width = 0.84 / len(bars)
    for number, (name, heights) in enumerate(bars.items()):
        places = [place + (number - (len(bars) - 1) / 2) * width for place in range(len(groups))]
        drawn = axis.bar(places, [height or 0.0 for height in heights], width * 0.92, color=colours[name], label=name)
        axis.bar_label(drawn, [form.format(height) if height else "" for height in heights], fontsize=7)
    axis.set_xticks(range(len(groups)), groups)
    axis.spines[["top", "right"]].set_visible(False)


def draw_retrieval(rows: list[dict[str, Any]], path: Path) -> None:
    """Build time over the size of the corpus, written as PNG."""
    figure, building = plt.subplots(figsize=(4.5, 2.8), layout="constrained")
    tokens = [row["tokens"] / 1e6 for row in rows]
    building.plot(tokens, [row["build_seconds"] for row in rows], "o-", color="#1f6fb2")
    building.set(xlabel="million tokens", ylabel="build, s", ylim=(0, None))
    figure.savefig(path, dpi=120)
    plt.close(figure)

"""The ledger's results as curves: throughput and latency over the number of clients, and the costs as the log grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

_COLOURS = {"sqlite": "#1f6fb2", "postgresql": "#c2571a"}
_NAMES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}

Row = dict[str, Any]


def draw(results: dict[str, Any], path: Path) -> None:
    """Four panels, written as PNG."""
    figure, ((speed, delay), (cost, proof)) = plt.subplots(2, 2, figsize=(10, 7), layout="constrained")
    for store, found in results.items():
        colour, name = _COLOURS[store], _NAMES[store]
        _curve(speed, found["clients"], "clients", lambda row: row["appends_per_second"], name, colour)
        _curve(delay, found["clients"], "clients", lambda row: row["p99_ms"], name, colour)
        growth = found["growth"]
        _curve(cost, growth, "entries", _milliseconds, f"{name}, 64 clients", colour)
        _curve(cost, growth, "entries", lambda row: _milliseconds(row["streaming"]), f"{name}, stream", colour, "--")
        _curve(proof, growth, "entries", lambda row: row["proof"]["median_ms"], f"{name}, median", colour)
        _curve(proof, growth, "entries", lambda row: row["proof"]["p99_ms"], f"{name}, 99th percentile", colour, "--")
    titles = {
        speed: ("concurrent clients", "durable appends/s"),
        delay: ("concurrent clients", "99th percentile, ms"),
        cost: ("entries in the log", "ms an append, 1 / throughput"),
        proof: ("entries in the log", "inclusion proof over gRPC, ms"),
    }
    for axis, (across, up) in titles.items():
        axis.set(xscale="log", xlabel=across, ylabel=up)
        axis.set_ylim(0, 1.4 * axis.get_ylim()[1])  # room for the legend
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize="small", loc="upper left", ncols=2)
    for axis in (speed, delay):
        clients = [row["clients"] for row in next(iter(results.values()))["clients"]]
        axis.set_xticks(clients, labels=map(str, clients))
        axis.minorticks_off()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _milliseconds(row: Row) -> float:
    return float(1e3 / row["appends_per_second"])


def _curve(
    axis: Any, rows: Sequence[Row], across: str, up: Callable[[Row], float], label: str, colour: str, line: str = "-"
) -> None:
    axis.plot([row[across] for row in rows], [up(row) for row in rows], line, marker="o", color=colour, label=label)

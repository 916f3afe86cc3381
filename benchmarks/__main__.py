"""`python -m benchmarks`: all measurements, as JSON and a plot in benchmarks/results, with the bars they are held
to.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import decode, memory, plot, streaming

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    arguments = _arguments()
    results: dict[str, Any] = {"machine": _machine(), "model": str(arguments.model)}
    if "memory" in arguments.only:
        results["memory"] = memory.measure(arguments.model)
    if "streaming" in arguments.only:
        results["streaming"] = streaming.measure(arguments.model, prompts=4, max_tokens=arguments.max_tokens)
    if "decode" in arguments.only:
        rows = decode.measure(arguments.model, prompts=arguments.prompts, max_tokens=arguments.max_tokens)
        results["decode"] = rows
    _write(results, arguments.out)
    _show(results)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("demo/base"), help="transformers directory (demo/base)")
    parser.add_argument("--prompts", type=int, default=8, help="prompts of each domain (8)")
    parser.add_argument("--max-tokens", type=int, default=128, help="tokens generated for each at most (128)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for JSON and plot (benchmarks/results)")
    choices = ("memory", "streaming", "decode")
    parser.add_argument("--only", nargs="+", choices=choices, default=choices, help="measurements to make (all)")
    return parser.parse_args()


def _machine() -> dict[str, Any]:
    return {
        "processor": next(
            (
                line.split(":")[1].strip()
                for line in Path("/proc/cpuinfo").read_text().splitlines()
                if "model name" in line
            ),
            platform.processor(),
        ),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
    }


def _write(results: dict[str, Any], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name in ("memory", "streaming", "decode"):
        if name in results:
            document = {"machine": results["machine"], "model": results["model"], name: results[name]}
            (out / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    if "decode" in results:
        plot.draw(results["decode"], out / "decode.png")


def _show(results: dict[str, Any]) -> None:
    console = Console()
    for name in ("memory", "streaming"):
        if name in results:
            console.print(f"{name}: {results[name]}")
    if "decode" not in results:
        return
    table = Table(
        "domain", "T", "batch", "generate", "lookup", "off", "lookahead", "off/gen", "look/off", "length", "same"
    )
    for row in results["decode"]:
        speed = row["tokens_per_second"]
        table.add_row(
            row["domain"], str(row["temperature"]), str(row["batch"]),
            *(str(speed.get(name, "–")) for name in plot.CONTENDERS),
            str(row["off over generate"]), str(row["lookahead over off"]), str(row["acceptance length"]),
            "yes" if row["lookahead identical to off"] else "NO",
        )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    main()

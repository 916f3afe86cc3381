"""The cost of TLS: the same requests over two ports of one server, in turns."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.load.callers import Seen, requests, serve
from benchmarks.load.measure import FLAGS, figures, methods_of, rate, warm
from benchmarks.load.stack import running

_CALLERS = 8
_TURNS = 6


def measure(model: str, *, quick: bool = False) -> dict[str, Any]:
    """Turns of plain, TLS, TLS, plain. Each run of plain over the other one of its turn says how far chance goes.

    `model` as `--model` takes it. Speculation is off. The server's own calls to its ledger have no TLS.
    """
    runs: dict[str, list[Seen]] = {"plain": [], "tls": []}
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), model, *FLAGS) as plain:
        stacks = {"plain": plain, "tls": plain.secure()}
        methods = methods_of(plain)
        asked = requests(4 * _CALLERS, methods)
        for stack in stacks.values():
            asyncio.run(warm(stack, methods))
        for _ in range(1 if quick else _TURNS):
            for name in ("plain", "tls", "tls", "plain"):
                runs[name].append(asyncio.run(serve(stacks[name], asked, _CALLERS, off=True)))
    pairs = {name: list(zip(found[::2], found[1::2], strict=True)) for name, found in runs.items()}
    ratios = [_together(tls) / _together(bare) for bare, tls in zip(pairs["plain"], pairs["tls"], strict=True)]
    return {
        "model": model,
        "callers": _CALLERS,
        **{name: figures(found) for name, found in runs.items()},
        "over plain": round(median(ratios), 3),
        "turns": [round(ratio, 3) for ratio in ratios],
        "plain over itself": [round(rate(last) / rate(first), 3) for first, last in pairs["plain"]],
        "same tokens": len({tuple(sorted(seen.outputs.items())) for found in runs.values() for seen in found}) == 1,
    }


def _together(pair: tuple[Seen, Seen]) -> float:
    """The rate of two runs of the same requests."""
    return sum(seen.tokens for seen in pair) / sum(seen.seconds for seen in pair)

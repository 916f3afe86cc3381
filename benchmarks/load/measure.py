"""Throughput, latency and memory under 1 to 64 callers; speculation on beside off."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.load.callers import Seen, Stack, requests, running, serve
from services.client.generation.runtime import Runtime
from services.client.ledger.ledger import LedgerClient

CALLERS = (1, 4, 16, 64)
_LEAST_REQUESTS = 16
_SOAK_CALLERS = 8
_LEDGER_SECONDS = 60.0  # until the last receipt is there
_LENGTHS = (0, 100, 300, 500, 900)
FLAGS = ("--no-prefix-caching",)
"""The same requests come again and again: each run computes their prompts."""


def measure(model: str, *, quick: bool = False, soak_minutes: float = 0.0) -> dict[str, Any]:
    """Measure a model, named as by `--model`. On and off alternate on the same requests; their tokens have to be
    equal.
    """
    counts = CALLERS[:2] if quick else CALLERS
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), model, *FLAGS) as stack:
        methods = methods_of(stack)
        asyncio.run(warm(stack, methods))
        cases = [case for callers in counts for case in _on_and_off(stack, methods, callers)]
        soak = _soak(stack, methods, soak_minutes) if soak_minutes else None
    return {"model": model, "methods": methods, "cases": cases, "soak": soak, "load average": os.getloadavg()}


def methods_of(stack: Stack) -> list[str]:
    """The methods that are loaded, `auto` first: mixed among the requests."""
    with Runtime.connect(stack.generation, token=stack.token) as runtime:
        return ["auto", *(name for name in runtime.model_info().methods if name != "off")]


async def warm(stack: Stack, methods: list[str]) -> None:
    await serve(stack, requests(8, methods), 4, off=False)


def _on_and_off(stack: Stack, methods: list[str], callers: int) -> list[dict[str, Any]]:
    """Each twice, the second time the other way round."""
    asked = requests(max(callers, _LEAST_REQUESTS), methods)
    runs: dict[bool, list[Seen]] = {False: [], True: []}
    for off in (False, True, True, False):
        runs[off].append(asyncio.run(serve(stack, asked, callers, off=off)))
    outputs = {tuple(sorted(seen.outputs.items())) for seen in (*runs[False], *runs[True])}
    pairs = zip(runs[False], runs[True], strict=True)
    over_off = median(rate(on) / rate(off) for on, off in pairs)
    resident = stack.resident_mb()
    cases = [
        {
            "callers": callers,
            "speculation": "off" if off else "on",
            **figures(runs[off]),
            "receipts complete": _complete(stack, runs[off]),
            "same tokens": len(outputs) == 1,
            "over off": 1.0 if off else round(over_off, 3),
            "resident_mb": resident,
        }
        for off in (False, True)
    ]
    print(*cases, sep="\n", file=sys.stderr, flush=True)  # the whole takes a quarter of an hour
    return cases


def figures(runs: list[Seen]) -> dict[str, Any]:
    """Figures of some runs of the same requests. Times are of all of them, the rate is their median."""
    first, gaps = ([value for seen in runs for value in values(seen)] for values in map(attrgetter, ("first", "gaps")))
    return {
        "requests": sum(len(seen.outputs) for seen in runs),
        "failures": dict(sum((seen.failures for seen in runs), Counter[str]())),
        "tokens_per_second": round(median(map(rate, runs)), 1),
        "first_token_ms": {"p50": _ms(first, 50), "p99": _ms(first, 99)},
        "inter_token_ms": {"p50": _ms(gaps, 50), "p99": _ms(gaps, 99)},
    }


def first_tokens(runs: list[Seen]) -> dict[str, Any]:
    """Times to the first token by the length of the prompt, in tokens."""
    lengths = {}
    for least, end in pairwise((*_LENGTHS, 1 << 30)):
        times = sorted(time for seen in runs for tokens, time in seen.by_prompt if least <= tokens < end)
        if len(times) > 1:
            worst = round(1e3 * times[-1], 1)
            lengths[f"{least}+"] = {
                "requests": len(times), "p50": _ms(times, 50), "p95": _ms(times, 95), "worst": worst,
            }  # fmt: skip
    return {"first_token_ms_by_prompt": lengths}


def rate(seen: Seen) -> float:
    return seen.tokens / seen.seconds


def _ms(values: list[float], percent: int) -> float:
    return round(1e3 * quantiles(values, n=100, method="inclusive")[percent - 1], 1)


def _complete(stack: Stack, runs: list[Seen]) -> bool:
    """Whether the ledger has every receipt that callers were given, one for each request, each of them once."""
    given = set().union(*(seen.receipts for seen in runs))
    deadline = time.monotonic() + _LEDGER_SECONDS
    with LedgerClient.connect(stack.ledger, token=stack.token) as ledger:
        while True:
            logged = [each.receipt_id for each in ledger.receipts()]
            if given <= {*logged} or time.monotonic() > deadline:
                break
            time.sleep(0.2)
    answered = sum(len(seen.outputs) for seen in runs)
    return given <= {*logged} and len(given) == answered and len({*logged}) == len(logged)


def _soak(stack: Stack, methods: list[str], minutes: float) -> dict[str, Any]:
    """The same mix again and again; memory after each round."""
    asked = requests(4 * _SOAK_CALLERS, methods)
    started, answered, failures = time.monotonic(), 0, 0
    samples: list[dict[str, float]] = []
    while (elapsed := time.monotonic() - started) < 60 * minutes or not samples:
        seen = asyncio.run(serve(stack, asked, _SOAK_CALLERS, off=False))
        answered, failures = answered + len(seen.outputs), failures + seen.failures.total()
        samples.append({"minute": round(elapsed / 60, 2), **stack.resident_mb()})
    return {"callers": _SOAK_CALLERS, "requests": answered, "failures": failures, "resident_mb": samples}

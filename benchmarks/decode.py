"""Decoding speed of all contenders on four domains, at three temperatures alone, and eight at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import track

from benchmarks.engines import Contender, KolmEngine, Run, Transformers
from benchmarks.prompts import DOMAINS, load_prompts

SETTINGS = ((1, 0.0), (1, 0.7), (1, 1.0), (8, 0.0), (8, 0.7))  # batch, temperature


def measure(model: Path, head: Path | None, *, prompts: int, max_tokens: int) -> list[dict[str, Any]]:
    """A row for each domain, temperature and batch size; `prompts` of each domain one by one, four times as many by
    eights.

    Contenders take turns on the same prompts, in another order each time and then back again, so that what the machine
    does beside them hits all alike; ratios are taken per turn, and their median is reported. Without a head eagle3
    takes no part.
    """
    engine = KolmEngine(model, head)
    contenders: list[Contender] = [
        Transformers(model, prompt_lookup=False),
        Transformers(model, prompt_lookup=True),
        engine.contender("off"),
        *(engine.contender(method) for method in engine.drafters),
    ]
    settings = [(d, t, b) for b, t in SETTINGS for d in DOMAINS]
    _take_turns(contenders, [load_prompts("chat", engine.tokenizer, 1)], 0.0, 32)
    rows = []
    for domain, temperature, batch in track(settings, "decoding"):
        known = load_prompts(domain, engine.tokenizer, prompts if batch == 1 else max(batch, 4 * prompts))
        groups = [known[i : i + batch] for i in range(0, len(known) - len(known) % batch, batch)]
        rows.append({
            "domain": domain,
            "temperature": temperature,
            "batch": batch,
            **_summary(contenders, _take_turns(contenders, groups, temperature, max_tokens)),
        })  # fmt: skip
    return rows


def _take_turns(
    contenders: Sequence[Contender], groups: Sequence[Sequence[Sequence[int]]], temperature: float, max_tokens: int
) -> list[dict[str, Run | None]]:
    turns = []
    for number, group in enumerate(groups):
        order = [contenders[(place + number) % len(contenders)] for place in range(len(contenders))]
        there = {contender.name: contender.run(group, temperature, max_tokens) for contender in order}
        back = {contender.name: contender.run(group, temperature, max_tokens) for contender in reversed(order)}
        turns.append({name: _both(there[name], back[name]) for name in there})
    return turns


def _both(first: Run | None, second: Run | None) -> Run | None:
    """Two runs of the same prompts as one, in the mean of their times."""
    return replace(first, seconds=(first.seconds + second.seconds) / 2) if first and second else None


def _summary(contenders: Sequence[Contender], turns: Sequence[dict[str, Run | None]]) -> dict[str, Any]:
    def over(name: str, base: str) -> float | None:
        ratios = [a.tokens_per_second / b.tokens_per_second for t in turns if (a := t[name]) and (b := t[base])]
        return round(median(ratios), 3) if ratios else None

    def of(name: str) -> list[Run]:
        return [run for turn in turns if (run := turn[name])]

    off, peer = of("kolm off"), of("transformers generate")
    pairs = [
        (a, b) for one, other in zip(off, peer, strict=True) for a, b in zip(one.tokens, other.tokens, strict=True)
    ]
    return {
        "tokens_per_second": {
            c.name: round(median(run.tokens_per_second for run in of(c.name)), 1) for c in contenders if of(c.name)
        },
        "off over generate": over("kolm off", "transformers generate"),
        "lookahead over prompt lookup": over("kolm lookahead", "transformers prompt lookup"),
        "greedy equal to transformers": f"{sum(a == b for a, b in pairs)} of {len(pairs)}",
        **{
            method: {"over off": over(f"kolm {method}", "kolm off"), **_drafted(runs, off)}
            for method in ("lookahead", "eagle3")
            if (runs := of(f"kolm {method}"))
        },
    }


def _drafted(runs: Sequence[Run], off: Sequence[Run]) -> dict[str, Any]:
    """What a method's drafts brought, and whether its output is that of off, bit for bit."""
    drafts = sum(run.drafts for run in runs)
    depths = zip_longest(*(run.accepted for run in runs), fillvalue=0)
    return {
        "acceptance length": round(median(run.mean_acceptance_length for run in runs), 2),
        "accepted by depth": [round(sum(accepted) / drafts, 3) for accepted in depths] if drafts else [],
        "identical to off": all(
            a.tokens == b.tokens and a.digests == b.digests for a, b in zip(off, runs, strict=True)
        ),
    }

"""Contenders taking turns on the same prompts, and what their times say about each other."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from statistics import median
from typing import Any

from benchmarks.engines import Contender, Run

Turn = Mapping[str, Run | None]
"""The answers of each contender to the same prompts, by its name; None where it could not take them."""


def take_turn(
    contenders: Sequence[Contender],
    prompts: Sequence[Sequence[int]],
    temperature: float,
    max_tokens: int,
    dice: random.Random,
) -> Turn:
    """All contenders in an order drawn with `dice`, and then back again, so that what the machine does beside them, and
    what the one before leaves in its caches, hits all alike.
    """
    order = dice.sample(contenders, len(contenders))
    there = {contender.name: contender.run(prompts, temperature, max_tokens) for contender in order}
    back = {contender.name: contender.run(prompts, temperature, max_tokens) for contender in reversed(order)}
    return {name: _both(there[name], back[name]) for name in there}


def _both(first: Run | None, second: Run | None) -> Run | None:
    """Two runs of the same prompts as one, in the mean of their times."""
    return replace(first, seconds=(first.seconds + second.seconds) / 2) if first and second else None


def runs_of(turns: Sequence[Turn], name: str) -> list[Run]:
    return [run for turn in turns if (run := turn.get(name))]


def speeds(turns: Sequence[Turn]) -> dict[str, float]:
    """Median tokens per second by contender."""
    return {
        name: round(median(run.tokens_per_second for run in runs), 1)
        for name in turns[0]
        if (runs := runs_of(turns, name))
    }


def seconds(turns: Sequence[Turn], name: str) -> float:
    """That a contender took for all of its turns."""
    return sum(run.seconds for run in runs_of(turns, name))


def ratio(turns: Sequence[Turn], name: str, base: str) -> float | None:
    """Median over the turns of one contender's speed over another's; None where they never met."""
    ratios = [a.tokens_per_second / b.tokens_per_second for t in turns if (a := t.get(name)) and (b := t.get(base))]
    return round(median(ratios), 3) if ratios else None


def drafted(turns: Sequence[Turn], name: str) -> dict[str, Any]:
    """A method beside off: speed, what its drafts brought, and whether its output is that of off, bit for bit."""
    off, runs = runs_of(turns, "kolm off"), runs_of(turns, name)
    drafts = sum(run.drafts for run in runs)
    depths = zip_longest(*(run.accepted for run in runs), fillvalue=0)
    return {
        "over off": ratio(turns, name, "kolm off"),
        "acceptance length": round(median(run.mean_acceptance_length for run in runs), 2),
        "accepted by depth": [round(sum(accepted) / drafts, 3) for accepted in depths] if drafts else [],
        "identical to off": all(
            a.tokens == b.tokens and a.digests == b.digests for a, b in zip(off, runs, strict=True)
        ),
    }

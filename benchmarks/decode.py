"""Decoding speed of all contenders on four domains, at three temperatures alone, and eight at a time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.progress import track

from benchmarks.engines import Contender, KolmEngine, Transformers
from benchmarks.prompts import DOMAINS, load_prompts
from benchmarks.turns import Turn, drafted, ratio, runs_of, speeds, take_turn

SETTINGS = ((1, 0.0), (1, 0.7), (1, 1.0), (8, 0.0), (8, 0.7))  # batch, temperature
_WARM_UP = 3  # prompts of each domain at each temperature, from the other end of the files


def measure(model: Path, head: Path | None, *, prompts: int, max_tokens: int) -> list[dict[str, Any]]:
    """A row for each domain, temperature and batch size. `prompts` of each domain run alone, four times as many run in
    batches of eight.

    Contenders take turns (`benchmarks.turns`); ratios are taken per turn, and their median is reported. Before, all
    answer the same few other requests: estimates of acceptance are those of a server that has been in use. (Sixteens of
    prompts use up the files: then some of these come again by eights.) Without a head eagle3 takes no part.
    """
    engine = KolmEngine(model, head)
    contenders: list[Contender] = [
        Transformers(model, prompt_lookup=False),
        Transformers(model, prompt_lookup=True),
        engine.contender("off"),
        *(engine.contender(method) for method in engine.drafters),
    ]
    settings = [(d, t, b) for b, t in SETTINGS for d in DOMAINS]
    _warm_up(contenders, engine, prompts, max_tokens)
    rows, dice = [], random.Random(0)
    for domain, temperature, batch in track(settings, "decoding"):
        known = load_prompts(domain, engine.tokenizer, prompts if batch == 1 else max(batch, 4 * prompts))
        groups = [known[i : i + batch] for i in range(0, len(known) - len(known) % batch, batch)]
        turns = [take_turn(contenders, group, temperature, max_tokens, dice) for group in groups]
        rows.append({"domain": domain, "temperature": temperature, "batch": batch, **_summary(turns)})
    return rows


def _warm_up(contenders: Sequence[Contender], engine: KolmEngine, measured: int, max_tokens: int) -> None:
    for domain in DOMAINS:
        others = load_prompts(domain, engine.tokenizer, 64)[measured:][-_WARM_UP:]
        for temperature in sorted({temperature for _, temperature in SETTINGS}):
            for prompt in track(others, f"warming up on {domain}"):
                for contender in contenders:
                    contender.run([prompt], temperature, max_tokens)


def _summary(turns: Sequence[Turn]) -> dict[str, Any]:
    off, peer = runs_of(turns, "kolm off"), runs_of(turns, "transformers generate")
    pairs = [
        (a, b) for one, other in zip(off, peer, strict=True) for a, b in zip(one.tokens, other.tokens, strict=True)
    ]
    return {
        "tokens_per_second": speeds(turns),
        "off over generate": ratio(turns, "kolm off", "transformers generate"),
        "lookahead over prompt lookup": ratio(turns, "kolm lookahead", "transformers prompt lookup"),
        "greedy equal to transformers": f"{sum(a == b for a, b in pairs)} of {len(pairs)}",
        **{
            method: drafted(turns, f"kolm {method}")
            for method in ("lookahead", "eagle3")
            if f"kolm {method}" in turns[0]
        },
    }

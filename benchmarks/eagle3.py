"""The head alone: the cost of a draft, and the acceptance of chains of four with and without the sampler's noise."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import track

from benchmarks.engines import KolmEngine, Run
from benchmarks.prompts import KINDS, load_prompts
from services.generation.drafting.eagle3.drafter import Eagle3Drafter
from services.generation.drafting.eagle3.loading import load_head
from services.generation.engine.cost import PassCost
from services.generation.engine.drafter import Ask, Draft, Drafter
from services.generation.engine.request import EngineRequest
from services.generation.engine.tree import TokenTree

TEMPERATURES = (0.0, 0.7, 1.0)
DEPTH = 4
_FREE_ROWS = PassCost.line(fixed=1e9, row=1.0)  # seconds: every token is worth its row, so that no draft is cut short


def measure(model: Path, head: Path, *, prompts: int, max_tokens: int) -> dict[str, Any]:
    """Seconds of a draft beside those of a pass, and acceptance of chains by kind and temperature."""
    engine = KolmEngine(model)
    cost, engine.cost = engine.cost, _FREE_ROWS
    loaded = load_head(head, engine.target.config)
    timed = _Timed(Eagle3Drafter(loaded, engine.target, _FREE_ROWS))
    engine.drafters = {
        "coupled": timed,
        "uncoupled": Eagle3Drafter(loaded, engine.target, _FREE_ROWS, coupled=False),
    }
    rows = []
    for kind, temperature in track([(each, t) for t in TEMPERATURES for each in KINDS], "acceptance"):
        known = load_prompts(kind, engine.tokenizer, prompts)
        row: dict[str, Any] = {"kind": kind, "temperature": temperature}
        for method in engine.drafters:
            contender = engine.contender(method, k=DEPTH, parameters={"tree_width": 1, "tree_tokens": DEPTH})
            row[method] = _summed([contender.run([prompt], temperature, max_tokens) for prompt in known])
        rows.append(row)
    return {"cost": timed.cost(cost), "acceptance": rows}


def _summed(runs: Sequence[Run]) -> dict[str, Any]:
    drafts = sum(run.drafts for run in runs)
    by_depth = [sum(run.accepted[depth] for run in runs if depth < len(run.accepted)) for depth in range(DEPTH)]
    return {
        "acceptance length": round(median(run.mean_acceptance_length for run in runs), 2),
        "accepted by depth": [round(accepted / drafts, 3) for accepted in by_depth] if drafts else [],
    }


class _Timed(Drafter):
    """A drafter whose drafts are timed."""

    def __init__(self, drafter: Eagle3Drafter) -> None:
        self._drafter, self._seconds = drafter, list[float]()
        self.feature_layers = drafter.feature_layers

    def begin(self, request: EngineRequest) -> Draft:
        return self._drafter.begin(request)

    def propose(self, asks: Sequence[Ask]) -> list[TokenTree]:
        started = time.perf_counter()
        trees = self._drafter.propose(asks)
        if len(trees[0]) > DEPTH:
            self._seconds.append(time.perf_counter() - started)
        return trees

    def cost(self, of_pass: PassCost) -> dict[str, float]:
        """In milliseconds, and as a share of a pass over one row."""
        draft = median(self._seconds)
        return {
            "draft ms": round(1e3 * draft, 3),
            "pass ms": round(1e3 * of_pass.of(1), 3),
            "pass over the draft ms": round(1e3 * of_pass.of(1 + DEPTH), 3),
            "of a pass": round(draft / of_pass.of(1), 3),
        }

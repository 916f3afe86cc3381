"""Every method beside off and prompt lookup, one request at a time, each of another domain than the one before."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.progress import track

from benchmarks.deployment import build_store
from benchmarks.engines import Contender, KolmEngine, Transformers
from benchmarks.prompts import DOMAINS, KNOWN, load_prompts
from benchmarks.turns import Turn, drafted, ratio, runs_of, seconds, speeds, take_turn
from services.generation.drafting.draft_model import DraftModelDrafter
from services.generation.drafting.eagle3.drafter import Eagle3Drafter
from services.generation.drafting.eagle3.loading import load_head
from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.drafting.methods import METHODS as METHOD_TABLE
from services.generation.drafting.rest import RestDrafter
from services.generation.drafting.retrieval.datastore import Datastore
from services.generation.engine.cost import StepCost
from services.generation.engine.drafter import Drafter
from services.generation.target.blocks import BLOCK
from services.generation.target.loading import load_target
from services.generation.target.probing.calibration import time_passes

METHODS = ("lookahead", "rest", "draft", "eagle3", "auto")
TEMPERATURES = (0.0, 0.7)
_WARM_UP = 8  # prompts of each domain at each temperature, as far as there are others than those that are measured:
# estimates of acceptance are those of a server that has been in use
_PEER = "transformers prompt lookup"
_LEARN_NOTHING = (_PEER, "kolm off")  # from one request for another


def measure(model: Path, head: Path | None, draft: Path | None, *, prompts: int, max_tokens: int) -> dict[str, Any]:
    """The datastore's contents, how many requests each method had answered before, and a row for each domain and
    temperature. Without a head eagle3 takes no part, without a draft model draft does not.

    Undeclared requests: nobody tells `auto` their domain.
    """
    engine = KolmEngine(model)
    with tempfile.TemporaryDirectory() as folder:
        store, held = build_store(model, Path(folder))
        contenders = _contenders(engine, model, head, draft, store)
        requests = _warm_up(contenders, engine, prompts, max_tokens)
        turns = _turns(contenders, engine, prompts, max_tokens)
    rows = [
        {"domain": domain, "temperature": temperature, "batch": 1, **_summary(found)}
        for (domain, temperature), found in turns.items()
    ]
    return {"store": held, "requests to warm up": requests, "rows": rows}


def _contenders(
    engine: KolmEngine, model: Path, head: Path | None, draft: Path | None, store: Datastore
) -> list[Contender]:
    engine.drafters = _drafters(engine, head, draft, store)
    first, *others = (spec.name for spec in METHOD_TABLE if spec.name in engine.drafters)
    return [
        Transformers(model, prompt_lookup=True),
        engine.contender("off"),
        *(engine.contender(method) for method in engine.drafters),
        engine.contender(first, name="auto", next_methods=tuple(others)),
    ]


def _drafters(engine: KolmEngine, head: Path | None, draft: Path | None, store: Datastore) -> dict[str, Drafter]:
    cost, target = engine.cost, engine.target
    found: dict[str, Drafter] = {"lookahead": LookaheadDrafter(cost), "rest": RestDrafter({None: [store]})}
    if draft is not None:
        small = load_target(draft, cache_tokens=target.blocks.total * BLOCK)
        found["draft"] = DraftModelDrafter(small, target.config.vocab_size, StepCost.fit(time_passes(small)))
    if head is not None:
        found["eagle3"] = Eagle3Drafter(load_head(head, target.config), target, cost, copies=True)
    return found


def _warm_up(contenders: Sequence[Contender], engine: KolmEngine, measured: int, max_tokens: int) -> int:
    """The same requests for everybody that learns from them, from the other end of the prompts' files: they compile
    what is compiled, and estimates of acceptance and gain are those of a server that has been in use. Returns how many.
    """
    known = [load_prompts(domain, engine.tokenizer, KNOWN)[measured:][-_WARM_UP:] for domain in DOMAINS]
    rounds = enumerate(zip(*known, strict=True))
    requests = [(n, prompt, t) for n, prompts in rounds for t in TEMPERATURES for prompt in prompts]
    for n, prompt, temperature in track(requests, "warming up"):
        for contender in contenders:
            if n == 0 or contender.name not in _LEARN_NOTHING:
                contender.run([prompt], temperature, max_tokens)
    return len(requests)


def _turns(
    contenders: Sequence[Contender], engine: KolmEngine, prompts: int, max_tokens: int
) -> dict[tuple[str, float], list[Turn]]:
    """By domain and temperature; every request is of another domain than the one before."""
    known = {domain: load_prompts(domain, engine.tokenizer, prompts) for domain in DOMAINS}
    turns: dict[tuple[str, float], list[Turn]] = {(d, t): [] for t in TEMPERATURES for d in DOMAINS}
    requests = [(d, t, n) for n in range(prompts) for t in TEMPERATURES for d in DOMAINS]
    dice = random.Random(0)
    for domain, temperature, n in track(requests, "methods"):
        prompt = known[domain][n]
        turns[domain, temperature].append(take_turn(contenders, [prompt], temperature, max_tokens, dice))
    return turns


def _summary(turns: Sequence[Turn]) -> dict[str, Any]:
    methods = [method for method in METHODS if f"kolm {method}" in turns[0]]
    found: dict[str, Any] = {method: drafted(turns, f"kolm {method}") for method in methods}
    for method in methods:
        found[method]["over prompt lookup"] = ratio(turns, f"kolm {method}", _PEER)
    found["prompt lookup"] = {"over off": ratio(turns, _PEER, "kolm off")}
    singles = [method for method in methods if method != "auto"]
    best = max(singles, key=lambda method: found[method]["over off"])
    quickest = min(singles, key=lambda method: seconds(turns, f"kolm {method}"))
    found["auto"]["passes by method"] = _shares(turns)
    found["auto"]["over the best single"] = ratio(turns, "kolm auto", f"kolm {best}")
    in_all = seconds(turns, f"kolm {quickest}") / seconds(turns, "kolm auto")
    found["auto"]["over the quickest single in all"] = quickest, round(in_all, 3)
    return {"tokens_per_second": speeds(turns), "best single": best, **found}


def _shares(turns: Sequence[Turn]) -> dict[str, float]:
    counts: Counter[str] = Counter()
    for run in runs_of(turns, "kolm auto"):
        counts.update(dict(run.passes_by_method))
    return {method: round(passes / counts.total(), 3) for method, passes in counts.most_common()}

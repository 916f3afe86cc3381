"""The cost of single steps: drafting with a head, auditing a receipt, serving a token."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import track

from benchmarks.arithmetic import ARITHMETICS
from benchmarks.engines import KINDS, KolmEngine, Run, load_prompts
from services.generation.drafting.eagle3.drafter import Eagle3Drafter
from services.generation.drafting.eagle3.loading import load_head
from services.generation.engine.cost import PassCost
from services.generation.engine.drafter import Draft, Drafter, DraftRequest
from services.generation.engine.events import Outcome
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.engine.tree import TokenTree
from services.generation.target.model_path import model_path
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target
from services.generation.verification import Record, Verifier

TEMPERATURES = (0.0, 0.7, 1.0)
DEPTH = 4
_FREE_ROWS = PassCost.line(fixed=1e9, row=1.0)  # seconds: every token is worth its row, so that no draft is cut short

_PROMPTS, _ROUNDS, _TOKENS = 4, 3, 128
_THREADS = (1, 2)
_SERVED_ROUNDS, _SERVED_TOKENS = 5, 64


def measure_head(model: Path, head: Path, *, prompts: int, max_tokens: int) -> dict[str, Any]:
    """Seconds of a draft and of a pass, and acceptance of chains by kind and temperature."""
    engine = KolmEngine(model)
    cost, engine.cost = engine.cost, _FREE_ROWS
    loaded = load_head(head, engine.target.config)
    timed = _Timed(Eagle3Drafter(loaded, engine.target))
    engine.drafters = {"coupled": timed, "uncoupled": Eagle3Drafter(loaded, engine.target, noise=0.0)}
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

    def propose(self, asks: Sequence[DraftRequest]) -> list[TokenTree]:
        started = time.perf_counter()
        trees = self._drafter.propose(asks)
        if len(trees[0]) > DEPTH:
            self._seconds.append(time.perf_counter() - started)
        return trees

    def cost(self, of_pass: PassCost) -> dict[str, float]:
        """The median cost of a step in milliseconds, and as a share of a pass over one row."""
        draft = median(self._seconds)
        return {
            "draft ms": round(1e3 * draft, 3),
            "pass ms": round(1e3 * of_pass.of(1), 3),
            "pass over the draft ms": round(1e3 * of_pass.of(1 + DEPTH), 3),
            "of a pass": round(draft / of_pass.of(1), 3),
        }


def measure_audits(arithmetics: Sequence[str] = ARITHMETICS, threads: Sequence[int] = _THREADS) -> dict[str, Any]:
    """Milliseconds of an audit of 128 output tokens of SmolLM2-135M, the prompt included: medians over prompts of the
    minimum over rounds, in which the two ways take turns. By arithmetic, and by the number of threads.
    """
    return {arithmetic: {str(count): _measured(arithmetic, count) for count in threads} for arithmetic in arithmetics}


def _measured(arithmetic: str, threads: int) -> dict[str, Any]:
    path = model_path("smollm2")
    tokenizer = Tokenizer(path)
    verifier = Verifier.load(path, context_length=1024, threads=threads, arithmetic=arithmetic)
    prompts = [tuple(prompt) for prompt in load_prompts("question", tokenizer, _PROMPTS)]
    decoded, verified = [], []
    for number, prompt in enumerate(track(prompts, f"audits, {arithmetic}, {threads} threads")):
        sampling = SamplingParams(0.7, seed=number, max_tokens=_TOKENS, ignore_eos=True)
        request = EngineRequest(f"audit/{number}", prompt, sampling)
        record = Record(request, verifier.decode(request).token_ids)
        pairs = [_turn(verifier, record) for _ in range(_ROUNDS)]
        decoded.append(min(decoding for decoding, _ in pairs))
        verified.append(min(along for _, along in pairs))
    by_decoding, by_prefill = median(decoded), median(verified)
    return {
        "decode_ms": round(1e3 * by_decoding, 1),
        "prefill_ms": round(1e3 * by_prefill, 1),
        "audits_per_second": {"decode": round(1 / by_decoding, 2), "prefill": round(1 / by_prefill, 2)},
        "ratio": round(by_prefill / by_decoding, 3),
        "prompt_tokens": [len(prompt) for prompt in prompts],
    }


def _turn(verifier: Verifier, record: Record) -> tuple[float, float]:
    """Seconds of both ways, one after the other; both make the same statement."""
    decoding, plain = _timed(lambda: verifier.decode(record.request))
    along, verified = _timed(lambda: verifier.prefill(record))
    assert verified.stream_digest == plain.stream_digest
    return decoding, along


def _timed(run: Callable[[], Outcome]) -> tuple[float, Outcome]:
    started = time.perf_counter()
    outcome = run()
    return time.perf_counter() - started, outcome


def measure_served(model: Path) -> dict[str, Any]:
    """Milliseconds of a token that one caller is served without speculation, and of the bare pass over the same token
    at the same position: medians over rounds, in which both take turns, and their median ratio. Both are in steady
    state, because loading has timed passes until their time no longer drifts.
    """
    engine = KolmEngine(model)
    prompt, contender = load_prompts("question", engine.tokenizer, 1)[0], engine.contender("off")
    served, bare, first = list[float](), list[float](), contender.run([prompt], 0.0, _SERVED_TOKENS)
    tokens = first.tokens[0][:-1]  # the last one is not computed with
    for _ in track(range(_SERVED_ROUNDS), "served tokens"):
        run = contender.run([prompt], 0.0, _SERVED_TOKENS)
        served.append(run.decode_seconds / len(tokens))
        bare.append(_bare_passes(engine.target, len(prompt), tokens) / len(tokens))
    return {
        "served ms": round(1e3 * median(served), 3),
        "pass ms": round(1e3 * median(bare), 3),
        "of a pass": round(median(token / alone for token, alone in zip(served, bare, strict=True)), 3),
        "prompt tokens": len(prompt),
        "tokens": len(tokens),
    }


def _bare_passes(target: Target, length: int, tokens: Sequence[int]) -> float:
    """Seconds of passes over one token each, the first one at position `length`."""
    table: list[int] = []
    target.blocks.extend(table, length + len(tokens))
    passes = []
    for number, token in enumerate(tokens):
        rows = RowsBuilder()
        rows.add_tree(table, length + number, [token], [-1])
        passes.append(rows.build())
    started = time.perf_counter()
    for each in passes:
        target.forward(each)
    seconds = time.perf_counter() - started
    target.blocks.release(table)
    return seconds

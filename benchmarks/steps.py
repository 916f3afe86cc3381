"""The cost of single steps: auditing a receipt, serving a token."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import track

from benchmarks.engines import KolmEngine, load_prompts
from services.generation.engine.events import Outcome
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.model_path import model_path
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target
from services.generation.verification import Record, Verifier

_PROMPTS, _ROUNDS, _TOKENS = 4, 3, 128
_SERVED_ROUNDS, _SERVED_TOKENS = 5, 64


def measure_audits(arithmetic: str, threads: int) -> dict[str, Any]:
    """Measure an audit of 128 output tokens of SmolLM2-135M, prompt included, by decoding and by prefill: milliseconds,
    medians over prompts of the least of several rounds, in which the two ways alternate.
    """
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
    """Seconds by decoding and by prefill, one after the other; both have to give the same stream digest."""
    decoding, plain = _timed(lambda: verifier.decode(record.request))
    along, verified = _timed(lambda: verifier.prefill(record))
    assert verified.stream_digest == plain.stream_digest
    return decoding, along


def _timed(run: Callable[[], Outcome]) -> tuple[float, Outcome]:
    started = time.perf_counter()
    outcome = run()
    return time.perf_counter() - started, outcome


def measure_served(model: Path) -> dict[str, Any]:
    """Measure milliseconds a token, served to one caller without speculation, and of bare passes over the same tokens
    at the same positions: medians over rounds, in which both alternate, and their median ratio. Both are in steady
    state, because loading has timed passes until their time is stable.
    """
    engine = KolmEngine(model)
    prompt, contender = load_prompts("question", engine.tokenizer, 1)[0], engine.contender("off")
    served, bare, first = list[float](), list[float](), contender.run([prompt], 0.0, _SERVED_TOKENS)
    tokens = first.tokens[0][:-1]  # no pass reads the last token
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

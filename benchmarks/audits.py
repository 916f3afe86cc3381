"""Costs of an audit: a recorded output verified by prefill, and decoded with speculation off."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from rich.progress import track

from benchmarks.arithmetic import ARITHMETICS
from benchmarks.prompts import load_prompts
from services.generation.engine.events import Outcome
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.folders.model_path import model_path
from services.generation.verification.record import Record
from services.generation.verification.verifier import Verifier

_PROMPTS, _ROUNDS, _TOKENS = 4, 3, 128
_THREADS = (1, 2)


def measure() -> dict[str, Any]:
    """Milliseconds of an audit of 128 output tokens of SmolLM2-135M, the prompt included: medians over prompts of the
    minimum over rounds, in which the two ways take turns. By arithmetic, and by the number of threads.
    """
    return {
        arithmetic: {str(threads): _measured(arithmetic, threads) for threads in _THREADS} for arithmetic in ARITHMETICS
    }


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

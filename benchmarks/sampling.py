"""Milliseconds of choosing a token from a row of logits, of a vocabulary as large as Qwen2.5's."""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median

import numpy as np

from services.generation.engine.request import SamplingParams
from services.generation.engine.sampling.race import Row
from services.generation.engine.sampling.sampler import Sampler, logprobs_of
from services.generation.warm_up import warm_up_sampling

VOCABULARY = 151_936
_SPREADS = (1.0, 3.0, 8.0)  # of the logits: nearly flat, as of models, sharp
_PROMPT = range(500)
_ROUNDS = 40
_LOGPROBS = 5
CASES: Mapping[str, SamplingParams] = {
    "T = 0": SamplingParams(),
    "T = 1": SamplingParams(temperature=1.0),
    "T = 0.7": SamplingParams(temperature=0.7),
    "top_k 50": SamplingParams(temperature=1.0, top_k=50),
    "top_p 0.9": SamplingParams(temperature=1.0, top_p=0.9),
    "min_p 0.05": SamplingParams(temperature=1.0, min_p=0.05),
    "top_k 50, top_p 0.9, penalties": SamplingParams(
        temperature=0.8, top_k=50, top_p=0.9, repetition_penalty=1.1, presence_penalty=0.5
    ),
    "5 logprobs": SamplingParams(logprobs=_LOGPROBS),
}


def measure() -> dict[str, dict[str, float]]:
    """Medians by case and spread of the logits; cases take turns on the same rows."""
    warm_up_sampling()
    return {f"logits spread by {spread:g}": _of(spread) for spread in _SPREADS}


def _of(spread: float) -> dict[str, float]:
    rng = np.random.default_rng(0)
    times: dict[str, list[float]] = {name: [] for name in CASES}
    samplers = {name: Sampler(params, 0, _PROMPT, frozenset()) for name, params in CASES.items()}
    for position in range(_ROUNDS):
        logits = (spread * rng.standard_normal(VOCABULARY)).astype(np.float32)
        for name, sampler in samplers.items():
            start = time.perf_counter()
            row = Row.of(logits)
            token = sampler.choose(row, position)
            if CASES[name].logprobs:
                logprobs_of(row, token, _LOGPROBS)
            times[name].append(1e3 * (time.perf_counter() - start))
            sampler.accept(token)
    return {name: round(median(taken), 3) for name, taken in times.items()}

"""Machine code of kernels, sampling and drafting, compiled before anybody asks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.drafting.suffix import SuffixDrafter
from services.generation.engine.cost import PassCost
from services.generation.engine.request import SamplingParams
from services.generation.engine.sampling.row import Row
from services.generation.engine.sampling.sampler import Sampler, logprobs_of
from services.generation.first_start import compiling, leave_mark
from services.generation.target.canonical.kernels.attention.cached import CACHED
from services.generation.target.canonical.kernels.compilation import compile_ahead, module_names
from services.generation.target.canonical.kernels.storages import STORAGES

_SOME_COST = PassCost(rows=(1, 2), seconds=(1.0, 1.5))


def compile_everything() -> None:
    """For this machine, whatever model comes: minutes where nothing is there yet, nothing where all is.

    Raises:
        TargetError: this CPU lacks fused multiply-add.
    """
    wanted = (
        module_names(list(STORAGES), cached, arithmetic) for cached in CACHED for arithmetic in ("float32", "int8")
    )
    compile_ahead(list(dict.fromkeys(module for modules in wanted for module in modules)))
    with compiling():
        compile_sampling_and_drafting()
    leave_mark()


def compile_sampling_and_drafting() -> None:
    """What numba compiles, of which no model says which it needs."""
    compile_sampling()
    LookaheadDrafter(_SOME_COST)
    SuffixDrafter()


def compile_sampling() -> None:
    """What the first requests would wait for otherwise, on the engine's thread: numba compiles at the first call."""
    logits = np.zeros(2, np.float32)
    plain = SamplingParams(temperature=1.0)
    for params in (plain, replace(plain, top_p=0.5), replace(plain, top_k=1, top_p=0.5, min_p=0.1)):
        Sampler(params, 0, (), frozenset(), 2).sample(logits, 0)
    logprobs_of(Row.of(logits), 0, 1)

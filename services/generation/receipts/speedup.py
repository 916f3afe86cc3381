"""How much faster than without speculation, where that can be stated honestly; and what a step without it costs."""

from __future__ import annotations

from dataclasses import dataclass

from services.generation.engine.async_engine import AsyncEngine
from services.generation.engine.request import EngineRequest, SamplingParams

_PROMPT_TOKENS = 192
_STEPS = 16
_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Speedup:
    """Time without speculation divided by time with it; `basis` is `replayed` or `calibrated`."""

    value: float
    basis: str


def replayed(off_seconds: float, seconds: float) -> Speedup | None:
    """Against the decode time of a replay with speculation off. Both must have had the engine to themselves."""
    return Speedup(off_seconds / seconds, "replayed") if off_seconds > 0 and seconds > 0 else None


def calibrated(off_step_seconds: float, tokens: int, seconds: float) -> Speedup | None:
    """Against the cost of as many off steps as tokens came after the first one, which the prefill gave."""
    return Speedup(off_step_seconds * (tokens - 1) / seconds, "calibrated") if tokens > 1 and seconds > 0 else None


async def off_step_seconds(engine: AsyncEngine, context_length: int) -> float:
    """The fastest of a few short decodes, for noise only ever adds; so no speedup is claimed that the noise made."""
    prompt = (0,) * max(1, min(_PROMPT_TOKENS, context_length - _STEPS - 1))
    steps = min(_STEPS, context_length - len(prompt) - 1)
    if steps < 1:
        return 0.0
    seconds = []
    for repeat in range(_REPEATS):
        sampling = SamplingParams(max_tokens=steps + 1, ignore_eos=True)
        outcome, _ = await engine.complete(EngineRequest(f"calibration/{repeat}", prompt, sampling))
        seconds.append(outcome.metrics.decode_seconds)
    return min(seconds) / steps

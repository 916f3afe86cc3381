"""What one step with speculation off really costs here: engine, sampling and all, measured once at start."""

from __future__ import annotations

from services.generation.engine.async_engine import AsyncEngine
from services.generation.engine.request import EngineRequest, SamplingParams

_PROMPT_TOKENS = 192
_STEPS = 16
_REPEATS = 3


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

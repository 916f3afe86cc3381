"""How much faster than without speculation, where a replay measured it."""

from __future__ import annotations

from dataclasses import dataclass

from services.generation.engine.events import SpeculationMetrics


@dataclass(frozen=True, slots=True)
class Speedup:
    """Time without speculation divided by time with it; `basis` says how it was measured."""

    value: float
    basis: str


def replayed(off_seconds: float, metrics: SpeculationMetrics) -> Speedup | None:
    """Against the decode time of a replay with speculation off. Both must have had the engine to themselves.

    None where nothing was drafted, and for a ratio above the tokens of a pass: a pass that verifies a draft is no
    cheaper than one that does not, so the clock or the machine made it.
    """
    if not metrics.num_draft_tokens or off_seconds <= 0 or metrics.decode_seconds <= 0:
        return None
    ratio = off_seconds / metrics.decode_seconds
    return Speedup(ratio, "replayed") if ratio <= metrics.mean_acceptance_length else None

"""How much faster than without speculation, where that can be stated honestly. Pure."""

from __future__ import annotations

from dataclasses import dataclass


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

"""How far a run is, and what learning rate that means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Clock = Callable[[], float]

_WARM_UP = 0.01
_DECAY_FROM = 0.3
_LEAST_WARM_UP = 0.05
_SECONDS_PER_MINUTE = 60.0


class Budget(Protocol):
    """Says which fraction of a run is over after `steps` steps and `seconds` seconds of training."""

    def fraction(self, steps: int, seconds: float) -> float: ...


@dataclass(frozen=True, slots=True)
class Steps:
    """A run of a fixed number of steps; reproducible to the bit."""

    total: int

    def fraction(self, steps: int, seconds: float) -> float:
        return steps / self.total


@dataclass(frozen=True, slots=True)
class Minutes:
    """A run that ends, fully annealed, after so much time, however fast the machine is."""

    total: float

    def fraction(self, steps: int, seconds: float) -> float:
        return seconds / (self.total * _SECONDS_PER_MINUTE)


def rate_factor(fraction: float, decay_from: float = _DECAY_FROM) -> float:
    """Short linear warm-up, a plateau up to `decay_from` of the run, then a long linear decay to zero."""
    if fraction < _WARM_UP:
        return max(fraction / _WARM_UP, _LEAST_WARM_UP)
    if fraction < decay_from:
        return 1.0
    return max(0.0, (1.0 - fraction) / (1.0 - decay_from))

"""The length of a run, in steps or in minutes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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

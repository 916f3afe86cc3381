"""What the passes of each arm brought and cost, lately."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.generation.drafting.auto.arm import Arm


@dataclass(frozen=True, slots=True)
class Kind:
    """What requests share a record: those that wear the same adapter, sampled ones apart from greedy ones."""

    adapter: str | None
    sampled: bool


@dataclass(frozen=True, slots=True)
class Tally:
    """Faded sums over passes. `cost` is in passes without a draft, under the load of the moment."""

    passes: float = 0.0
    tokens: float = 0.0
    cost: float = 0.0
    milliseconds: float = 0.0

    def faded(self, memory: float) -> Tally:
        return Tally(self.passes * memory, self.tokens * memory, self.cost * memory, self.milliseconds * memory)

    def plus(self, other: Tally) -> Tally:
        return Tally(
            self.passes + other.passes,
            self.tokens + other.tokens,
            self.cost + other.cost,
            self.milliseconds + other.milliseconds,
        )

    def gain(self, prior: float, weight: float) -> float:
        """Tokens per cost: how many times as fast as without drafts; `prior` counts for `weight` passes' cost."""
        return (self.tokens + weight * prior) / (self.cost + weight)


class Record:
    """Tallies by arm; an arm's own passes fade by `memory` each, what other arms do leaves it as it is.

    Written by one thread. `tallies` may be read by any: each value is replaced, never changed.
    """

    def __init__(self, memory: float, tallies: Mapping[Arm, Tally] | None = None) -> None:
        self._memory = memory
        self.tallies: dict[Arm, Tally] = dict(tallies or {})

    def add(self, arm: Arm, seen: Tally) -> None:
        self.tallies[arm] = self.of(arm).faded(self._memory).plus(seen)

    def of(self, arm: Arm) -> Tally:
        return self.tallies.get(arm, Tally())

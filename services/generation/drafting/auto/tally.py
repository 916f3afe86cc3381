"""What the passes of each arm brought and cost, lately."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from services.generation.drafting.auto.arm import Arm
from services.generation.drafting.auto.resemblance import OTHER

_FORGOTTEN = 0.01  # passes: an arm of which less is left is none


class Kind(NamedTuple):
    """What requests share a record: those that wear the same adapter and whose prompts resemble the same workload,
    sampled ones apart from greedy ones.
    """

    adapter: str | None
    sampled: bool
    resembles: str = OTHER


class Belief(NamedTuple):
    """How many times as fast as without drafts an arm is held to be, and the standard error of that."""

    gain: float
    error: float


class Tally(NamedTuple):
    """Faded sums over passes. `cost` is in passes without a draft, under the load of the moment; `surprise` in tokens
    squared, over sequences: by how far each of them missed what its cost let expect.
    """

    passes: float = 0.0
    tokens: float = 0.0
    cost: float = 0.0
    milliseconds: float = 0.0
    surprise: float = 0.0

    def plus(self, other: Tally, memory: float = 1.0) -> Tally:
        """With the other's sums; its own fade first."""
        return Tally(
            self.passes * memory + other.passes,
            self.tokens * memory + other.tokens,
            self.cost * memory + other.cost,
            self.milliseconds * memory + other.milliseconds,
            self.surprise * memory + other.surprise,
        )

    def gain(self, prior: float, weight: float) -> float:
        """Tokens per cost: how many times as fast as without drafts; `prior` counts for `weight` passes' cost."""
        return (self.tokens + weight * prior) / (self.cost + weight)

    def belief(self, prior: Belief, weight: float) -> Belief:
        """Of the mean over sequences, whose tokens per cost scatter; `prior` counts for one that cost `weight`."""
        error = math.sqrt(self.surprise + (weight * prior.error) ** 2) / (self.cost + weight)
        return Belief(self.gain(prior.gain, weight), error)


class Record:
    """Tallies by arm. With every pass all of them fade by `memory`: an arm that is not used is slowly forgotten, and so
    tried again.

    Written by one thread. `tallies` may be read by any: it is replaced, never changed.
    """

    def __init__(self, memory: float, tallies: Mapping[Arm, Tally] | None = None) -> None:
        self._memory = memory
        self.begun = 0  # sequences, in this process
        self.tallies: dict[Arm, Tally] = dict(tallies or {})

    def add(self, arm: Arm, seen: Tally, expected: float) -> None:
        """What an arm brought to one sequence; `expected` is the gain that it was held to have."""
        memory, nothing = self._memory**seen.passes, Tally()
        found = {known: tally.plus(nothing, memory) for known, tally in self.tallies.items()}
        surprise = (seen.tokens - expected * seen.cost) ** 2
        found[arm] = found.get(arm, nothing).plus(seen._replace(surprise=surprise))
        self.tallies = {known: tally for known, tally in found.items() if tally.passes >= _FORGOTTEN}

    def of(self, arm: Arm) -> Tally:
        return self.tallies.get(arm, Tally())

"""What the passes of each arm brought and cost, lately."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from services.generation.drafting.auto.arm import Arm
from services.generation.drafting.auto.belief import Beliefs, Compared, Evidence
from services.generation.drafting.auto.resemblance import OTHER

_FORGOTTEN = 0.01  # passes or comparisons: of what less is left, nothing is
FARTHEST = math.log(1000.0)  # that a comparison may say
_COMPARED_MEMORY = 0.99  # of comparisons, with each new one
_NEWS = 0.08  # of all comparisons, that are not counted yet
_LENGTH_NEWS = 0.05  # of a sequence, in the share of long ones


class Kind(NamedTuple):
    """What requests share a record: those that wear the same adapter and whose prompts resemble the same workload,
    sampled ones apart from greedy ones.
    """

    adapter: str | None
    sampled: bool
    resembles: str = OTHER


class Tally(NamedTuple):
    """Faded sums over passes. `cost` is in passes without a draft, under the load of the moment."""

    passes: float = 0.0
    tokens: float = 0.0
    cost: float = 0.0
    milliseconds: float = 0.0

    def plus(self, other: Tally, memory: float = 1.0) -> Tally:
        """With the other's sums; its own fade first."""
        return Tally(
            self.passes * memory + other.passes,
            self.tokens * memory + other.tokens,
            self.cost * memory + other.cost,
            self.milliseconds * memory + other.milliseconds,
        )

    def gain(self, prior: float, weight: float) -> float:
        """Tokens per cost: how many times as fast as without drafts; `prior` counts for `weight` passes' cost."""
        return (self.tokens + weight * prior) / (self.cost + weight)


class Record:
    """Tallies by arm, and how arms compare. With every pass all tallies fade by `memory`; comparisons fade with each
    other: an arm that is not used is slowly forgotten, and so tried again.

    Written by one thread. `tallies` and `compared` may be read by any: they are replaced, never changed.
    """

    def __init__(
        self,
        memory: float,
        tallies: Mapping[Arm, Tally] | None = None,
        compared: Compared | None = None,
        studied: float = 0.0,
    ) -> None:
        self._memory = memory
        self.studied = studied  # comparisons that a shadow made, ever
        self.begun = 0  # sequences, in this process
        self.long = 1.0  # share of them, lately, that were long
        self.tallies: dict[Arm, Tally] = dict(tallies or {})
        self.compared: dict[tuple[Arm, Arm], Evidence] = dict(compared or {})
        self._beliefs: Beliefs | None = None  # of the arms that were asked for last
        self._news = 0.0  # comparisons since

    def begin(self) -> None:
        """Another sequence begins."""
        self.begun += 1
        self.long -= _LENGTH_NEWS * self.long

    def lasts(self) -> None:
        """One turns out to be long."""
        self.long += _LENGTH_NEWS

    def add(self, arm: Arm, seen: Tally) -> None:
        """What an arm brought in some passes of a sequence."""
        memory, nothing = self._memory**seen.passes, Tally()
        found = {known: tally.plus(nothing, memory) for known, tally in self.tallies.items()}
        found[arm] = found.get(arm, nothing).plus(seen)
        self.tallies = {known: tally for known, tally in found.items() if tally.passes >= _FORGOTTEN}

    def compare(self, one: Arm, other: Arm, times: float) -> None:
        """On one sequence, however long, `one` was so many times as fast as `other`."""
        log = max(-FARTHEST, min(FARTHEST, math.log(times)))
        seen = Evidence(1.0, log, log**2)
        self.fade()
        self.compared = {**self.compared, (one, other): self.compared.get((one, other), Evidence()).plus(seen, 1.0)}
        self._news += 1.0

    def fade(self) -> None:
        """As with a new comparison."""
        faded = {pair: evidence.plus(Evidence(), _COMPARED_MEMORY) for pair, evidence in self.compared.items()}
        self.compared = {pair: evidence for pair, evidence in faded.items() if evidence.weight >= _FORGOTTEN}

    def beliefs(self, arms: tuple[Arm, ...]) -> Beliefs:
        """What is known of these arms, but for the last few comparisons of many."""
        known = self._beliefs
        if (
            known is None
            or known.arms != arms
            or self._news > _NEWS * sum(each.weight for each in self.compared.values())
        ):
            known, self._news = Beliefs(arms, self.compared), 0.0
            self._beliefs = known
        return known

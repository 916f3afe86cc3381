"""How long passes really take, beside each method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from services.generation.drafting.auto.tally import Kind

_LEVEL_MEMORY, _OWN_MEMORY = 0.9, 0.995  # of what was measured, a turn: the machine changes more often than a method
_MOST = 3.0  # times what a pass is modelled to take: what takes longer had other reasons


class Step(NamedTuple):
    """Of the engine: when it began, how many sequences it has, and how many drafters draft for them, none included."""

    began: float
    sequences: int
    drafters: int = 1


class Timed(NamedTuple):
    """A pass of one sequence: its share of what passes are modelled to take, and of what drafting took, in seconds."""

    step: Step
    modelled: float
    drafting: float


class Pace:
    """`PassCost` is that of the target alone, with the processor's caches to itself. In use a pass shares them with its
    draft and with the engine's own work, which takes time, too, and not the same beside every method. So it is measured
    how many times as long as modelled passes take: a level, which follows the machine and its load, and by kind of
    request, for rows cost more in long contexts, and by drafter how far their passes lie from that.
    """

    def __init__(self) -> None:
        self._level, self._measured = 0.0, 0  # logarithm, and turns that it was measured in
        self._own: dict[tuple[Kind, str], tuple[int, float]] = {}  # turns, and logarithm beside the level

    def of(self, kind: Kind, drafter: str) -> float:
        """Seconds of a pass for each second that is modelled; of a drafter not seen yet the level's."""
        _, own = self._own.get((kind, drafter), (0, 0.0))
        return math.exp(self._level + own)

    def saw(self, kind: Kind, drafter: str, passes: Sequence[Timed]) -> None:
        """Passes of one sequence in a row with this drafter. Where a step and the next have as many sequences, each has
        an equal share of the time between: those that cost more seem quicker than they are, others slower. Where all
        have the same drafter, that evens out in what is known of it, else in the level only.
        """
        timed = [
            (each, (after.step.began - each.step.began) / each.step.sequences - each.drafting)
            for each, after in pairwise(passes)
            if each.step.sequences == after.step.sequences
        ]
        taken = sum(min(seconds, _MOST * each.modelled) for each, seconds in timed)
        if taken <= 0.0:
            return
        turns, own = self._own.get((kind, drafter), (0, 0.0))
        seen = math.log(taken / sum(each.modelled for each, _ in timed))
        self._measured += 1
        self._level += max(1.0 - _LEVEL_MEMORY, 1.0 / self._measured) * (seen - own - self._level)
        if all(each.step.drafters == 1 for each, _ in timed):
            own += max(1.0 - _OWN_MEMORY, 1.0 / (turns + 2)) * (seen - own - self._level)
            self._own[kind, drafter] = turns + 1, own

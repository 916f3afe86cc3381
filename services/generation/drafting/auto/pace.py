"""How long the passes of each method really take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

_MEMORY, _OWN_MEMORY = 0.98, 0.995  # of what was measured, a turn: of the level, and of a drafter
_MOST = 3.0  # times what a pass is modelled to take: what takes longer had other reasons


class Step(NamedTuple):
    """Of the engine: when it began, how many sequences drafted in it, and how many drafters drafted for them."""

    began: float
    sequences: int
    drafters: int = 1


class Pace:
    """`PassCost` is that of the target alone, with the processor's caches to itself. In use a pass shares them with its
    draft and with the engine's own work, which takes time, too, and not the same beside every method. So it is measured
    how many times as long as modelled steps take: a level, which follows the load of the machine, and by drafter how
    far its steps lie from that.
    """

    def __init__(self) -> None:
        self._level, self._measured = 0.0, 0  # logarithm, and turns that it was measured in
        self._own: dict[str, tuple[int, float]] = {}  # by drafter: turns, and logarithm beside the level

    def of(self, drafter: str) -> float:
        """Seconds of a pass for each second that is modelled; of a drafter not seen yet the level's."""
        _, own = self._own.get(drafter, (0, 0.0))
        return math.exp(self._level + own)

    def saw(self, drafter: str, passes: Sequence[tuple[Step, float]]) -> None:
        """Passes of one sequence in a row with this drafter, and the seconds that its share of each was modelled to
        take, the drafting included. Where as many sequences draft in a step and in the next, each has an equal share
        of the time between: those that cost more seem quicker than they are, others slower. Where all have the same
        drafter, that evens out in what is known of it, else in the level only.
        """
        timed = [
            (step, (after.began - step.began) / step.sequences, spent)
            for (step, spent), (after, _) in pairwise(passes)
            if step.sequences == after.sequences
        ]
        taken = sum(min(seconds, _MOST * spent) for _, seconds, spent in timed)
        if taken <= 0.0:
            return
        turns, own = self._own.get(drafter, (0, 0.0))
        seen = math.log(taken / sum(spent for *_, spent in timed))
        self._measured += 1
        self._level += max(1.0 - _MEMORY, 1.0 / self._measured) * (seen - own - self._level)
        if all(step.drafters == 1 for step, *_ in timed):
            own += max(1.0 - _OWN_MEMORY, 1.0 / (turns + 2)) * (seen - own - self._level)
            self._own[drafter] = turns + 1, own

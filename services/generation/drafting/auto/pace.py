"""How long steps really take."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

_MEMORY = 0.98  # of what was measured, a turn
_MOST = 1.0  # times what a pass is modelled to cost: what takes longer had other reasons


class Step(NamedTuple):
    """Of the engine: when it began, and how many sequences drafted in it."""

    began: float
    sequences: int


class Pace:
    """`PassCost` is that of the target alone. What else a step takes, the engine's own work, is the same for all
    methods, and weighs more on those that need more passes: so it is measured, where as many sequences draft in a step
    and in the next.
    """

    def __init__(self) -> None:
        self._beyond = 0.0
        self._measured = 0

    @property
    def beyond(self) -> float:
        """Seconds of a sequence's pass beyond what it was modelled to cost."""
        return max(0.0, self._beyond)

    def saw(self, passes: Sequence[tuple[Step, float]]) -> None:
        """Passes of one sequence in a row, and the seconds that its share of each was modelled to cost, the drafting
        included. A sequence that costs more than those beside it seems to have taken less than it was modelled to, the
        others seem to have taken more: only the mean of all says how long steps take.
        """
        found = [
            min((after.began - step.began) / step.sequences - spent, _MOST * spent)
            for (step, spent), (after, _) in pairwise(passes)
            if step.sequences == after.sequences
        ]
        if found:
            self._measured += 1
            weight = max(1.0 - _MEMORY, 1.0 / self._measured)
            self._beyond += weight * (sum(found) / len(found) - self._beyond)

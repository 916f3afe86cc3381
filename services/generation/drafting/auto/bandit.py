"""Which arm drafts for the next pass of one sequence: the rule of ADR 0022. Pure, no clock; its dice are seeded."""

from __future__ import annotations

import random

from services.generation.drafting.auto.arm import OFF, Arm
from services.generation.drafting.auto.tally import Record, Tally

_FIRST, _OTHERS = 1.5, 1.2  # gains expected of the arm that a sequence starts with and of the others, before any pass
_SHARED_WEIGHT = 8.0  # passes' cost that those expectations count for
_OWN_WEIGHT = 8.0  # passes' cost that the shared record counts for beside a sequence's own
_OWN_MEMORY = 0.97
_MARGIN = 1.03  # of gain, above the arm in use: below it a change would pay for nothing but itself
_TRY = 1 / 64  # probability that a pass begins a try
_TRY_PASSES = 4


class Bandit:
    """Starts with the first arm, uses the one with the best gain, and tries another now and then.

    The gain of an arm is the sequence's own, with the shared record's as its prior; that of `off` is 1, by definition.
    A try is `_TRY_PASSES` passes with an arm drawn evenly from the others. `seed` decides the draws.
    """

    def __init__(self, arms: tuple[Arm, ...], shared: Record, seed: int) -> None:
        self._arms, self._shared = arms, shared
        self._own = Record(_OWN_MEMORY)
        self._dice = random.Random(seed)
        self._best = self.arm = arms[0]
        self._begun = False
        self._settled = False  # whether this pass shows what the arm is worth, not what changing to it costs
        self._left = 0  # passes of a try

    def next(self) -> Arm:
        """The arm for the next pass."""
        if self._left and self.arm in self._arms:
            self._left -= 1
            self._settled = True
            return self.arm
        self._best = self._leader()
        others = [arm for arm in self._arms if arm not in (self._best, OFF)]
        chosen, self._left = self._best, 0
        if others and self._dice.random() < _TRY:
            chosen, self._left = self._dice.choice(others), _TRY_PASSES - 1
        self._settled = self._begun and chosen == self.arm
        self.arm, self._begun = chosen, True
        return chosen

    def _leader(self) -> Arm:
        leader = max(self._arms, key=self.gain)
        keeps = self._best in self._arms and self.gain(leader) <= _MARGIN * self.gain(self._best)
        return self._best if keeps else leader

    def gain(self, arm: Arm) -> float:
        if arm == OFF:
            return 1.0
        expected = _FIRST if arm == self._arms[0] else _OTHERS
        shared = self._shared.of(arm).gain(expected, _SHARED_WEIGHT)
        return self._own.of(arm).gain(shared, _OWN_WEIGHT)

    def saw(self, seen: Tally) -> None:
        """What the pass of the last arm brought. An arm's first one, in a sequence or after a change, is not counted:
        it also read what the arm had missed.
        """
        if self._settled:
            self._own.add(self.arm, seen)
            self._shared.add(self.arm, seen)

    def drop(self, drafter: str) -> None:
        """Its drafter has failed on this sequence."""
        self._arms = tuple(arm for arm in self._arms if arm.drafter != drafter)

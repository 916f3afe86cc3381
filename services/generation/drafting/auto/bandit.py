"""Which arm drafts for the next pass of one sequence: the rule of ADR 0030. Pure, no clock; its dice are given."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from services.generation.drafting.auto.arm import OFF, Arm
from services.generation.drafting.auto.tally import Belief, Record, Tally

_USUAL = 1.5  # gain expected of the best arm before any pass
_UNKNOWN = 0.9  # of an arm of which nothing is known, in gains of the best one
_DOUBT = 0.3  # standard error of that, as a share of it
_LEARNS = 0.4  # by so much, as a share of its gain, an arm that was hardly used may yet do better: drafters learn too
_YOUNG = 24.0  # passes after which half of that is left
_SHARED_WEIGHT = 8.0  # passes' cost that these expectations count for
_OWN_WEIGHT = 8.0  # passes' cost that the shared record counts for beside a sequence's own
_OWN_MEMORY = 0.97
_REVIEW = 8  # passes, after which a sequence looks whether another arm would do better
_MARGIN = 1.1  # of gain, above the arm in use: a change costs the new one what it has to read
_SETTLED = 64  # passes of a sequence before its first try: a short one is too short to win a try back
_TRY = 1 / 64  # probability that a later pass begins a try
_TRY_PASSES = 4
_STAY = 64  # passes with an arm after which the record is told, if the sequence has not ended by then
_NOTHING = Tally()


class Bandit:
    """A sequence begins with the arm whose gain, drawn from what the shared record holds of it, is the highest (with
    the first one, as long as nothing is known of any), and leaves it for one that its own text shows to be better.
    Long sequences try another one now and then.

    The gain of `off` is 1, by definition.
    """

    def __init__(self, arms: tuple[Arm, ...], shared: Record, dice: random.Random) -> None:
        self._arms, self._shared, self._dice = arms, shared, dice
        self._own: dict[Arm, Tally] = {}
        self._stay = _NOTHING  # with the present arm, not yet told
        self._expected = self._expectation()
        self._best = self.arm = arms[0] if self._expected is None else self._drawn(arms)
        self._passes = 0  # that were asked for
        self._left = 0  # of a try
        self._counts = False  # whether this pass shows what the arm is worth, not what changing to it costs

    def next(self) -> Arm:
        """The arm for the next pass."""
        self._passes += 1
        trying, self._left = self._left > 0 and self.arm in self._arms, max(0, self._left - 1)
        chosen = self.arm if trying else self._reviewed()
        if not trying and self._passes > _SETTLED and self._dice.random() < _TRY:
            chosen = self._tried()
        self._counts = chosen == self.arm
        if not self._counts:
            self._move_on()
        self.arm = chosen
        return chosen

    def _reviewed(self) -> Arm:
        """The arm in use, or the one that takes its place."""
        if self._best not in self._arms or self._passes % _REVIEW == 0:
            least = _MARGIN * self.gain(self._best) if self._best in self._arms else 0.0
            leader = max(self._arms, key=self.gain)
            if self.gain(leader) > least:
                self._best = leader
        return self._best

    def _tried(self) -> Arm:
        others = [arm for arm in self._arms if arm not in (self._best, OFF)]
        if not others:
            return self._best
        self._left = _TRY_PASSES - 1
        return self._drawn(others)

    def _drawn(self, arms: Sequence[Arm]) -> Arm:
        """Thompson (1933): each arm is taken as often as it is likely to be the best one, by what is known."""
        drawn = [self._dice.gauss(belief.gain, belief.error) for belief in map(self.belief, arms)]
        return arms[max(range(len(arms)), key=drawn.__getitem__)]

    def belief(self, arm: Arm) -> Belief:
        """What the shared record says of an arm."""
        if arm == OFF:
            return Belief(1.0, 0.0)
        expected = _UNKNOWN * _USUAL if self._expected is None else self._expected
        seen = self._shared.of(arm)
        gain, error = seen.belief(Belief(expected, _DOUBT * expected), _SHARED_WEIGHT)
        return Belief(gain, math.hypot(error, _LEARNS * gain * _YOUNG / (seen.passes + _YOUNG)))

    def _expectation(self) -> float | None:
        """The gain of an arm of which nothing is known; None where nothing is known of any."""
        used = [tally for arm in self._arms if arm != OFF and (tally := self._shared.of(arm)).passes]
        return max((_UNKNOWN * tally.gain(_USUAL, _SHARED_WEIGHT) for tally in used), default=None)

    def gain(self, arm: Arm) -> float:
        """In this sequence. Texts differ more than arms do: where the arm in use brings less than usual, half of that,
        as a power, is expected of the others too.
        """
        if arm == OFF:
            return 1.0
        usual = self.belief(arm).gain
        if arm != self._best and self._best != OFF:
            best = self.belief(self._best).gain
            usual *= math.sqrt(self._own_of(self._best).gain(best, _OWN_WEIGHT) / best)
        return self._own_of(arm).gain(usual, _OWN_WEIGHT)

    def _own_of(self, arm: Arm) -> Tally:
        return self._own.get(arm, _NOTHING)

    def saw(self, seen: Tally) -> None:
        """What the pass of the last arm brought. The first one after a change is not counted: it also read what the arm
        had missed. That of the arm that the sequence began with is: what a method reads first is part of its cost.
        """
        if not self._counts:
            return
        self._own[self.arm] = self._own_of(self.arm).plus(seen, _OWN_MEMORY)
        self._stay = self._stay.plus(seen)
        if self._stay.passes >= _STAY:
            self._move_on()

    def tell(self) -> None:
        """Have the record know what the present arm brought: it is left, or the sequence ends or is interrupted."""
        if self._stay.passes:
            self._shared.add(self.arm, self._stay, self.belief(self.arm).gain)
        self._stay = _NOTHING

    def _move_on(self) -> None:
        """Tell, and expect of arms that nobody has used what the record makes one expect now."""
        self.tell()
        self._expected = self._expectation()

    def drop(self, drafter: str) -> None:
        """Its drafter has failed on this sequence."""
        self._arms = tuple(arm for arm in self._arms if arm.drafter != drafter)

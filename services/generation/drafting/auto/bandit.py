"""Which arm drafts for the next pass of a sequence: the rule of ADRs 0030, 0038, 0039. No clock; its dice are given."""

from __future__ import annotations

import random

from services.generation.drafting.auto.arm import OFF, Arm
from services.generation.drafting.auto.tally import Record, Tally

_STUDIED = 48.0  # comparisons by a shadow, until which every sequence has one
_SHADOWED = 1 / 16  # probability that a later one does, if it draws no long shot
_OWN_WEIGHT = 8.0  # passes' cost that the shared record counts for beside a sequence's own
_OWN_MEMORY = 0.97
_TURN = 8  # passes, after which a sequence looks whether another arm would do better
_MARGIN = 1.1  # of gain, above the arm in use: a change costs the new one what it has to read
_SETTLED = 64  # passes of a sequence before its first try: a short one is too short to win a try back
_TRY = 1 / 8  # probability that a later turn is a try
_TRY_PASSES = 4
_LONG = 32  # passes, after which a sequence that goes on is a long one
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
        self._stay = self._told = _NOTHING  # with the present arm: not yet told, and told
        self._beliefs = shared.beliefs(arms)
        self._best = self.arm = self._beliefs.drawn(dice, arms) if self._beliefs.known else arms[0]
        self._passes = 0
        self._long = False
        self.left = 0  # passes of this turn; when there are none, all so far should have been seen
        self._fresh = False  # whether the next pass that is seen shows what changing to the arm costs, not its worth

    def shadow(self) -> Arm | None:
        """Another arm to compare with the one that the sequence begins with, on its text; called once, at first, and
        where arms can be compared. One that was drawn though it is held to be a tenth worse is compared then,
        not used.
        """
        drawn, held = self.arm, max(self._arms, key=self._beliefs.gain)
        if self._beliefs.known and self._beliefs.gain(held) > _MARGIN * self._beliefs.gain(drawn):
            self._best = self.arm = held
            if drawn != OFF:
                return drawn
        others = [arm for arm in self._arms if arm not in (self.arm, OFF)]
        wanted = bool(others) and (self._shared.studied < _STUDIED or self._dice.random() < _SHADOWED)
        return self._beliefs.drawn(self._dice, others) if wanted else None

    def next(self) -> Arm:
        """The arm for the next pass."""
        if self.left == 0:
            self._begin_turn()
        self.left -= 1
        self._passes += 1
        return self.arm

    def _begin_turn(self) -> None:
        if self._passes >= _LONG and not self._long:
            self._long = True
            self._shared.lasts()
        chosen = self._reviewed()
        if self._passes >= _SETTLED and self._dice.random() < _TRY:
            chosen = self._tried()
        self.left = _TURN if chosen == self._best else _TRY_PASSES
        if chosen != self.arm:
            self.tell()
            self._beliefs = self._shared.beliefs(self._beliefs.arms)
            self.arm, self._fresh = chosen, True

    def _reviewed(self) -> Arm:
        """The best arm so far, or the one that takes its place."""
        held = self._best in self._arms
        if self._passes or not held:
            least = _MARGIN * self.gain(self._best) if held else 0.0
            leader = max(self._arms, key=self.gain)
            if self.gain(leader) > least:
                self._best = leader
        return self._best

    def _tried(self) -> Arm:
        others = [arm for arm in self._arms if arm not in (self._best, OFF)]
        if not others:
            return self._best
        return self._beliefs.drawn(self._dice, others)

    def gain(self, arm: Arm) -> float:
        """In this sequence. Texts differ more than arms do: where the arm in use brings less than usual, most of that
        is expected of the others too.
        """
        if arm == OFF:
            return 1.0
        usual = self._beliefs.gain(arm)
        if arm != self._best and self._best != OFF:
            best = self._beliefs.gain(self._best)
            usual *= (self._own_of(self._best).gain(best, _OWN_WEIGHT) / best) ** self._beliefs.alike
        return self._own_of(arm).gain(usual, _OWN_WEIGHT)

    def _own_of(self, arm: Arm) -> Tally:
        return self._own.get(arm, _NOTHING)

    def may_want(self, drafter: str) -> bool:
        """Whether it begins with this drafter, or holds it to be so much better that it will change to it."""
        least = _MARGIN * self._beliefs.gain(self.arm)
        return any(a == self.arm or self._beliefs.gain(a) > least for a in self._arms if a.drafter == drafter)

    def saw(self, seen: Tally) -> None:
        """What the pass of the last arm brought. The first one after a change is not counted: it also read what the arm
        had missed. That of the arm that the sequence began with is: what a method reads first is part of its cost.
        """
        if self._fresh:
            self._fresh = False
            return
        self._own[self.arm] = self._own_of(self.arm).plus(seen, _OWN_MEMORY)
        self._stay = self._stay.plus(seen)
        if self._stay.passes >= _STAY:
            self._tell_so_far()
            self._beliefs = self._shared.beliefs(self._beliefs.arms)

    def tell(self) -> None:
        """Have the record know what the present arm brought: it is left, or the sequence ends or is interrupted."""
        self._tell_so_far()
        whole, self._told = self._told, _NOTHING
        if whole.passes and self.arm == OFF:
            self._shared.fade()
        elif whole.passes:
            self._shared.compare(self.arm, OFF, whole.tokens / whole.cost)

    def _tell_so_far(self) -> None:
        """Of a stay that goes on; it is one comparison, however long it is."""
        if self._stay.passes:
            self._shared.add(self.arm, self._stay)
        self._told, self._stay = self._told.plus(self._stay), _NOTHING

    def compared(self, one: Arm, other: Arm, times: float) -> None:
        """On this sequence's text one arm, in the shadow, would have been so many times as fast as another."""
        self._shared.compare(one, other, times)
        self._shared.studied += 1.0

    def drop(self, drafter: str) -> None:
        """Go on without a drafter: it has failed on this sequence, or cannot be asked."""
        self._arms = tuple(arm for arm in self._arms if arm.drafter != drafter)
        if self.arm not in self._arms:
            self.left = 0

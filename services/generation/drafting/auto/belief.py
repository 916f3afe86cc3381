"""What comparisons of arms make one believe of each of them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from operator import mul
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.auto.arm import OFF, Arm

_USUAL = math.log(1.5)  # log of the gain that is expected of the best arm before any pass
_USUAL_WEIGHT = 2.0  # comparisons that this counts for
_UNKNOWN = math.log(0.9)  # an arm of which nothing is known, beside the best one
_DOUBT = 0.3  # standard deviation of that
_TEXTS, _SAME_TEXT = 0.4, 0.2  # standard deviation expected of a comparison: with off, which differs with the text, and
# of two arms on the same text
_SCATTER_WEIGHT = 4.0  # comparisons that this counts for

Float64 = NDArray[np.float64]


class Evidence(NamedTuple):
    """Of comparisons of one arm with another: how many, and the sums of the logarithms of how many times as fast it
    was, and of their squares.
    """

    weight: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    def plus(self, other: Evidence, memory: float) -> Evidence:
        """With the other's; its own fade first."""
        return Evidence(
            self.weight * memory + other.weight,
            self.total * memory + other.total,
            self.squares * memory + other.squares,
        )


Compared = Mapping[tuple[Arm, Arm], Evidence]


class Beliefs:
    """A joint normal distribution of the logarithms of the gains of some arms; that of off is 0, by definition.

    Least squares over all comparisons, each weighed by how much it scatters: an arm that was never compared with off is
    known by way of those that were.
    """

    def __init__(self, arms: Sequence[Arm], compared: Compared) -> None:
        self.arms = tuple(arms)
        self._places = {arm: place for place, arm in enumerate(arm for arm in arms if arm != OFF)}
        self.known = any(self._tells(pair) for pair in compared)
        count = len(self._places)
        precision = np.eye(count) / _DOUBT**2
        pull = np.full(count, (self._best_over_off(compared) + _UNKNOWN) / _DOUBT**2)
        variances = []
        for same_text, expected in ((False, _TEXTS), (True, _SAME_TEXT)):
            seen = {pair: found for pair, found in compared.items() if (pair[1] != OFF) == same_text}
            variance = _variance(seen.values(), expected)
            variances.append(variance)
            for pair, found in seen.items():
                if self._tells(pair):
                    self._count(precision, pull, *pair, found, variance)
        texts, same_text_too = variances
        self.alike = max(0.5, 1.0 - same_text_too / (2.0 * texts))
        """Of how far, as a power, one arm brings less than usual to a text, so much is expected of another one."""
        spread = np.linalg.inv(np.linalg.cholesky(precision)).T
        self._means: list[float] = (spread @ (spread.T @ pull)).tolist()
        self._spread: list[list[float]] = spread.tolist()  # times its own transpose it is the covariance

    def _tells(self, pair: tuple[Arm, Arm]) -> bool:
        one, other = pair
        return one in self._places and (other == OFF or other in self._places)

    def _best_over_off(self, compared: Compared) -> float:
        seen = (compared.get((arm, OFF), Evidence()) for arm in self._places)
        prior = _USUAL_WEIGHT * _USUAL
        return max(((e.total + prior) / (e.weight + _USUAL_WEIGHT) for e in seen if e.weight), default=_USUAL)

    def _count(self, precision: Float64, pull: Float64, one: Arm, other: Arm, found: Evidence, variance: float) -> None:
        direction = np.zeros(len(pull))
        direction[self._places[one]] = 1.0
        if other != OFF:
            direction[self._places[other]] = -1.0
        precision += found.weight / variance * np.outer(direction, direction)
        pull += found.total / variance * direction

    def gain(self, arm: Arm) -> float:
        """How many times as fast as without drafts it is held to be."""
        return 1.0 if arm == OFF else math.exp(self._means[self._places[arm]])

    def error(self, arm: Arm) -> float:
        """The standard error of that, as a share of it."""
        return 0.0 if arm == OFF else math.hypot(*self._spread[self._places[arm]])

    def drawn(self, dice: random.Random, arms: Sequence[Arm]) -> Arm:
        """One of `arms`, each as often as it is likely to be the best of them, by what is known (Thompson 1933)."""
        thrown = [dice.gauss() for _ in self._means]

        def draw(arm: Arm) -> float:
            if arm == OFF:
                return 0.0
            place = self._places[arm]
            return self._means[place] + math.fsum(map(mul, self._spread[place], thrown))

        return max(arms, key=draw)


def _variance(found: Iterable[Evidence], expected: float) -> float:
    """Of comparisons around the mean of their pair, all pairs together."""
    weight, squares = _SCATTER_WEIGHT, _SCATTER_WEIGHT * expected**2
    for each in found:
        weight += each.weight
        squares += max(0.0, each.squares - each.total**2 / each.weight)
    return squares / weight

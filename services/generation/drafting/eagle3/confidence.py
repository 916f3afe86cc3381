"""What a head's probabilities are worth: they are told apart by size, and each size by how often it held."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable
from typing import cast

from services.generation.drafting.acceptance import AcceptanceRates

_EDGES = (0.01, 0.03, 0.06, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
_MIDDLES = tuple((low + high) / 2 for low, high in zip((0.0, *_EDGES), (*_EDGES, 1.0), strict=True))
_TOP = -1  # the kind that stands for the head's first choice, whatever its share
_WEIGHT = 12.0  # observations that the head's own word counts for
_FIRST_CHOICE = 0.6  # how often a first choice is expected to hold before any was judged


class Confidence:
    """Acceptance of draft tokens whose parents were accepted, by the share that the head gave them, and by depth.

    One for all greedy sequences of a drafter and one for all sampled ones: counts cross between them, text never does.
    """

    def __init__(self) -> None:
        self._rates = AcceptanceRates(prior=_prior, weight=_WEIGHT, memory=0.998)

    def acceptance(self, share: float, depth: int) -> float:
        return self._rates.rate(bisect_right(_EDGES, share), depth)

    def first_choice(self, depth: int) -> float:
        """How often the head's first choice holds at a depth, whatever it gave it."""
        return self._rates.rate(_TOP, depth)

    def record(self, share: float, rank: int, depth: int, held: bool) -> None:
        self._rates.record(bisect_right(_EDGES, share), depth, held)
        if rank == 0:
            self._rates.record(_TOP, depth, held)


def _prior(kind: Hashable) -> float:
    return _FIRST_CHOICE if kind == _TOP else _MIDDLES[cast(int, kind)]

"""What a head's probabilities are worth: they are told apart by size, and each size by how often it held.

Where earlier text goes on with the token too, the head's word is worth much more: those are counted apart.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.relaxed import relaxed

Float64 = NDArray[np.float64]

_EDGES = np.array((0.01, 0.03, 0.06, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995))
_TOP = len(_EDGES) + 1  # the kind that stands for the head's first choice, whatever its share
_FIRST_CHOICE = 0.6  # how often a first choice is expected to hold before any was judged
_BORDERS = np.concatenate([[0.0], _EDGES, [1.0]])
_MIDDLES = (_BORDERS[:-1] + _BORDERS[1:]) / 2
_SECONDED = 0.35  # power that a share is raised to before any was judged, for a token that is a copy as well
_PRIORS = np.stack([np.append(_MIDDLES, _FIRST_CHOICE), np.append(_MIDDLES**_SECONDED, _FIRST_CHOICE)])
_DEEPEST = 8  # depths from here on share one rate
_WEIGHT = 12.0  # observations that the head's own word counts for
_MEMORY = 0.998  # of the counts, per observation, so that a rate follows the text

COUNTS = (2, _TOP + 1, _DEEPEST + 1, 2)  # the head's alone or a copy as well, kinds, depths, (accepted, tried)


class Confidence:
    """Acceptance of draft tokens whose parents were accepted, by the share that the head gave them, and by depth.

    Shared by the sequences of a drafter that are sampled alike: counts cross between them, text never does.
    """

    def __init__(self, counts: Float64 | None = None) -> None:
        """`counts`, of shape COUNTS, is what it counts in; its own where none are given."""
        self.counts = np.zeros(COUNTS) if counts is None else counts

    def first_choice(self, depth: int) -> float:
        """How often the head's first choice holds at a depth, whatever it gave it."""
        return first_choice(self.counts, depth)

    def record(self, share: float, rank: int, depth: int, held: bool, *, copied: bool = False) -> None:
        """A token of such a share, whose parent had been emitted, held or not."""
        record(self.counts, int(copied), share, rank, depth, held)


@relaxed
def first_choice(counts: Float64, depth: int) -> float:
    return _rate(counts, 0, _TOP, depth)


@relaxed
def acceptance(counts: Float64, copied: int, share: float, depth: int) -> float:
    """How often tokens of such a share hold at a depth; `copied` is 1 for those that earlier text names as well."""
    return _rate(counts, copied, _kind(share), depth)


@relaxed
def record(counts: Float64, copied: int, share: float, rank: int, depth: int, held: bool) -> None:
    _count(counts, copied, _kind(share), depth, held)
    if rank == 0:
        _count(counts, 0, _TOP, depth, held)


@relaxed
def _kind(share: float) -> int:
    kind = 0
    while kind < _TOP - 1 and share >= _EDGES[kind]:
        kind += 1
    return kind


@relaxed
def _rate(counts: Float64, copied: int, kind: int, depth: int) -> float:
    at = min(depth, _DEEPEST)
    accepted, tried = counts[copied, kind, at]
    return float((accepted + _WEIGHT * _PRIORS[copied, kind]) / (tried + _WEIGHT))


@relaxed
def _count(counts: Float64, copied: int, kind: int, depth: int, held: bool) -> None:
    at = min(depth, _DEEPEST)
    seen = counts[copied, kind, at]
    seen[0] = seen[0] * _MEMORY + (1.0 if held else 0.0)
    seen[1] = seen[1] * _MEMORY + 1.0

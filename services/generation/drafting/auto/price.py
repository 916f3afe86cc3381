"""What a pass with a draft costs."""

from __future__ import annotations

from typing import NamedTuple

from services.generation.drafting.auto.tally import Tally

_WAKE, _LONGEST_WAKE = 0.4, 0.15  # what a pass loses after a draft, which took what it needs out of the processor's
# caches: as a share of the draft's time, and of its own at most


class Price(NamedTuple):
    """Seconds of one sequence's share: of a pass without a draft, of one more row in it, of what else a step takes, and
    what drafting took.
    """

    bare: float
    row: float
    beyond: float = 0.0
    drafting: float = 0.0

    def modelled(self, rows: int) -> float:
        """Of a pass over a tree of so many rows, and its draft."""
        wake = min(_WAKE * self.drafting, _LONGEST_WAKE * self.bare)
        return self.bare + (rows - 1) * self.row + self.drafting + wake

    def tally(self, modelled: float, tokens: int) -> Tally:
        """Of a pass that emitted so many tokens."""
        seconds = modelled + self.beyond
        return Tally(1.0, float(tokens), seconds / (self.bare + self.beyond), 1e3 * seconds)

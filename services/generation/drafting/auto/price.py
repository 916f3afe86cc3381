"""What a pass with a draft costs."""

from __future__ import annotations

from typing import NamedTuple

from services.generation.drafting.auto.tally import Tally


class Price(NamedTuple):
    """Seconds of one sequence's share: of a pass without a draft and of one more row in it, as modelled, and what
    drafting took. And how many times as long as modelled passes take: after such a draft, and after none.
    """

    bare: float
    row: float
    drafting: float = 0.0
    pace: float = 1.0
    pace_off: float = 1.0

    def modelled(self, rows: int) -> float:
        """Of a pass over a tree of so many rows, its draft left out."""
        return self.bare + (rows - 1) * self.row

    def tally(self, modelled: float, tokens: int) -> Tally:
        """Of a pass that emitted so many tokens."""
        seconds = modelled * self.pace + self.drafting
        return Tally(1.0, float(tokens), seconds / (self.bare * self.pace_off), 1e3 * seconds)

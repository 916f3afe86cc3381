"""How long steps really take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_MEMORY = 0.98  # of what was measured, a step
_EVERY = 8  # steps, of which one is measured
_MOST = 1.0  # times what a pass is modelled to cost: what takes longer had other reasons


class Paced(Protocol):
    """A sequence whose passes are modelled."""

    spent: float | None
    """Seconds that its last pass was modelled to cost, its share and the drafting included; None if it had none."""


class Pace:
    """`PassCost` is that of the target alone. What else a step takes, the engine's own work, is the same for all
    methods, and weighs more on those that need more passes: so it is measured, where the same sequences draft twice in
    a row.
    """

    def __init__(self) -> None:
        self.beyond = 0.0  # seconds of a sequence's pass beyond what it was modelled to cost
        self._steps = self._measured = 0
        self._started, self._sequences = 0.0, list[Paced]()

    def step(self, now: float, sequences: Sequence[Paced], *, shadowed: bool) -> None:
        """A step begins for these sequences; `shadowed`: others draft beside them, and take time."""
        self._steps += 1
        if self._steps % _EVERY == 1 and not shadowed:
            self._sequences, self._started = list(sequences), now
        elif self._steps % _EVERY == 2:
            self._measure(now, sequences)

    def _measure(self, now: float, sequences: Sequence[Paced]) -> None:
        before, self._sequences = self._sequences, []
        spent = [each.spent for each in before if each.spent is not None]
        same = len(before) == len(sequences) and all(a is b for a, b in zip(before, sequences, strict=True))
        if same and len(spent) == len(before) > 0:
            beyond = (now - self._started - sum(spent)) / len(spent)
            beyond = min(max(0.0, beyond), _MOST * sum(spent) / len(spent))
            self._measured += 1
            self.beyond += max(1.0 - _MEMORY, 1.0 / self._measured) * (beyond - self.beyond)

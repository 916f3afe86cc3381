"""What can be chosen for a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from services.generation.engine.drafter import Budget


class Arm(NamedTuple):
    """A drafter by the engine's name for it, and how deep it may draft; None leaves that to the drafter, which measures
    for each pass which depth pays.
    """

    drafter: str
    k: int | None = None

    @property
    def method(self) -> str:
        """The drafter's name without that of its head."""
        return self.drafter.partition("/")[0]

    def within(self, budget: Budget) -> Budget:
        """What it may spend of that."""
        return budget if self.k is None else replace(budget, depth=min(budget.depth, self.k))


OFF = Arm("off")


def arms_of(drafters: Sequence[str], k: int | None) -> tuple[Arm, ...]:
    """The arms of a request in order, off last, each as deep as the request asked for."""
    return (*(Arm(drafter, k) for drafter in drafters), OFF)

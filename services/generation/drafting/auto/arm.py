"""What can be chosen for a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_DEPTHS = {"draft": (4, 2)}  # where cost grows with depth and nothing but the method's own words would be cut


@dataclass(frozen=True, slots=True)
class Arm:
    """A drafter by the engine's name for it, and how deep it may draft; None leaves that to the drafter."""

    drafter: str
    k: int | None = None

    @property
    def method(self) -> str:
        """The drafter's name without that of its head."""
        return self.drafter.partition("/")[0]


OFF = Arm("off")


def arms_of(drafters: Sequence[str], k: int | None) -> tuple[Arm, ...]:
    """The arms of a request in order, off last. A `k` that was asked for is the only one tried."""
    found = []
    for drafter in drafters:
        depths = (k,) if k is not None else _DEPTHS.get(drafter.partition("/")[0], (None,))
        found += [Arm(drafter, depth) for depth in depths]
    return (*found, OFF)

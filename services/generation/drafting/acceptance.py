"""How often draft tokens of one kind hold: estimated from what was emitted, whether or not the draft had been
verified.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

DEEPEST = 8  # depths from here on share one rate


class AcceptanceRates:
    """Probability that a draft token is accepted, given that its parent was, by kind of draft and depth (1 is first).

    Counts fade by `memory` per observation, so that a rate follows the text. A kind not seen yet has its `parent`'s
    rate or, at the top, `prior(kind)`; `weight` is how many observations that counts for.
    """

    def __init__(
        self,
        parent: AcceptanceRates | None = None,
        *,
        prior: Callable[[Hashable], float] = lambda _: 0.5,
        weight: float = 4.0,
        memory: float = 0.99,
    ) -> None:
        self._parent = parent
        self._prior = prior
        self._weight = weight
        self._memory = memory
        self._counts: dict[tuple[Hashable, int], tuple[float, float]] = {}  # accepted, tried

    def rate(self, kind: Hashable, depth: int) -> float:
        key = kind, min(depth, DEEPEST)
        accepted, tried = self._counts.get(key, (0.0, 0.0))
        prior = self._prior(kind) if self._parent is None else self._parent.rate(kind, depth)
        return (accepted + self._weight * prior) / (tried + self._weight)

    def record(self, kind: Hashable, depth: int, accepted: bool) -> None:
        key = kind, min(depth, DEEPEST)
        hits, tried = self._counts.get(key, (0.0, 0.0))
        self._counts[key] = hits * self._memory + accepted, tried * self._memory + 1.0
        if self._parent is not None:
            self._parent.record(kind, depth, accepted)

"""With how much of the sampler's noise a draft is drawn.

A drafter that holds the target's own logits draws the target's token with the whole noise. One that errs does so by
more than the noise where it is unsure of itself and the target is not: it does better with the noise weighed by its own
doubt. Which of the two is the case is counted, where they would have drafted different tokens.
"""

from __future__ import annotations

from services.generation.drafting.eagle3.children import DOUBTED, WHOLE

_MEMORY = 0.99  # of the counts, per disagreement


class Coupling:
    """Shared by the sequences of a drafter that are sampled alike."""

    def __init__(self) -> None:
        self._held = [0.0, 0.0]  # disagreements in which WHOLE, or DOUBTED, was right

    @property
    def rule(self) -> int:
        return DOUBTED if self._held[DOUBTED] > self._held[WHOLE] else WHOLE

    def saw(self, firsts: tuple[int, int], emitted: int) -> None:
        """The first choices of WHOLE and of DOUBTED for a token, and the token."""
        if firsts[WHOLE] != firsts[DOUBTED]:
            self._held = [_MEMORY * held + (first == emitted) for held, first in zip(self._held, firsts, strict=True)]

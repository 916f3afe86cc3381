"""Copying drill: random tokens, said again and again. There is nothing to learn from it but looking back and copying.

A model that starts on dialogues alone ignores its prompt for a long while, because phrasings are learnt from a few
words back. A few hundred steps of this give it the attention heads that find what followed last time (induction heads:
Olsson et al. 2022), and everything that quotes, calls and answers is learnt on top of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from demo.corpus.dialogue import SPECIAL_TOKENS

DRILL_LENGTH = 64
"""Tokens in a window: short, so that there is little to search when searching is not yet learnt."""
_SHORTEST_PHRASE = 8


@dataclass(frozen=True, slots=True)
class Drill:
    """Windows that depend on the seed and the step alone."""

    vocabulary: int
    seed: int

    def batch(self, step: int, size: int) -> npt.NDArray[np.int64]:
        """Shape (size, DRILL_LENGTH + 1); each window is one random phrase over and over."""
        rng = np.random.default_rng([self.seed, step])
        return np.stack([self._window(rng) for _ in range(size)])

    def _window(self, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        length = int(rng.integers(_SHORTEST_PHRASE, DRILL_LENGTH // 2 + 1))
        phrase = rng.integers(len(SPECIAL_TOKENS), self.vocabulary, length)
        return np.resize(phrase, DRILL_LENGTH + 1)

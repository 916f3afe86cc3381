"""Copying drill: text said again. There is nothing to learn from it but looking back and copying.

A model that starts on dialogues alone ignores its prompt for a long while, because phrasings are learnt from a few
words back. A few hundred steps of random phrases, over and over, give it the attention heads that find what followed
last time (induction heads: Olsson et al. 2022), and everything that quotes, calls and answers is learnt on top of them.
Left at that, the heads fade again: so the rest of the run has pieces of its own text retold in another order now and
then, each of them once, because a model that has practised loops goes on to loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from demo.toy.corpus.dialogue import SPECIAL_TOKENS

DRILL_LENGTH = 64
"""Tokens in a window at first: short, so that there is little to search when searching is not yet learnt."""
_SHORTEST_PHRASE = 8
_LONGEST_PIECE = 48


@dataclass(frozen=True, slots=True)
class Drill:
    """Windows that depend on the seed and the step alone."""

    vocabulary: int
    seed: int

    def batch(self, step: int, size: int) -> npt.NDArray[np.int64]:
        """Shape (size, DRILL_LENGTH + 1); each window is one random phrase over and over."""
        rng = np.random.default_rng([self.seed, step])
        return np.stack([self._window(rng) for _ in range(size)])

    def retold(self, step: int, windows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The first half of each of `windows`, then the pieces of that half in another order; same shape."""
        rng = np.random.default_rng([self.seed, step])
        return np.stack([_retold(rng, window) for window in windows])

    def _window(self, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        length = int(rng.integers(_SHORTEST_PHRASE, DRILL_LENGTH // 2 + 1))
        phrase = rng.integers(len(SPECIAL_TOKENS), self.vocabulary, length)
        return np.resize(phrase, DRILL_LENGTH + 1)


def _retold(rng: np.random.Generator, window: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Without special tokens: no speaker's words count for more than another's here."""
    half = window[window >= len(SPECIAL_TOKENS)][: len(window) // 2 + 1]
    cuts = np.cumsum(rng.integers(_SHORTEST_PHRASE, _LONGEST_PIECE + 1, len(half) // _SHORTEST_PHRASE))
    pieces = np.split(half, cuts[cuts < len(half)])
    again = [pieces[i] for i in rng.permutation(len(pieces))]
    return np.resize(np.concatenate([half, *again]), len(window))

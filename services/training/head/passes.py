"""Which answers go through the head together, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from services.training.answers.answer import Answer

_POOL = 1024  # answers that are sorted by length before they are cut into passes, so that little of a pass is padding


@dataclass(frozen=True, eq=False)
class Passes:
    """An endless row of passes; what the n-th one holds depends on the answers and the seed alone."""

    answers: Sequence[Answer]
    starts: int  # in a pass at most, padding counted; a longer answer is a pass of its own
    seed: int

    def of_step(self, step: int, count: int) -> list[list[int]]:
        """The `count` passes of an optimiser step, each a list of answer numbers."""
        return [self._pass(step * count + number) for number in range(count)]

    def _pass(self, number: int) -> list[int]:
        epoch = 0
        while number >= len(self._epoch(epoch)):
            number -= len(self._epoch(epoch))
            epoch += 1
        return self._epoch(epoch)[number]

    def _epoch(self, epoch: int) -> list[list[int]]:
        """Every answer once, in fresh company."""
        return _shuffled_passes(self, epoch)


@lru_cache(maxsize=64)
def _shuffled_passes(passes: Passes, epoch: int) -> list[list[int]]:
    rng = Random(f"{passes.seed}/{epoch}")
    order = list(range(len(passes.answers)))
    rng.shuffle(order)
    made: list[list[int]] = []
    for first in range(0, len(order), _POOL):
        made += _cut(passes, order[first : first + _POOL])
    rng.shuffle(made)
    return made


def _cut(passes: Passes, pool: list[int]) -> list[list[int]]:
    """A pool by length, cut so that no pass has more than its starts."""
    answers = passes.answers
    cut: list[list[int]] = []
    for number in sorted(pool, key=lambda i: (len(answers[i].said), len(answers[i].tokens), i)):
        if not cut or (len(cut[-1]) + 1) * (len(answers[number].said) - 1) > passes.starts:
            cut.append([])
        cut[-1].append(number)
    return cut

"""Which answers go through the head together, and as which padded tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.training.answers.answer import Answer, Recording

_POOL = 1024  # answers that are sorted by length before they are cut into passes, so that little of a pass is padding


@dataclass(frozen=True, eq=False)
class Passes:
    """An endless row of passes; the n-th one depends on the answers and the seed alone."""

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


@dataclass(frozen=True, slots=True)
class Window:
    """`b` answers side by side, `n` entries and `a` starts at most; everything behind an answer's end is padding.

    Start j of an answer is the entry of the token before its j-th token: the first is the prompt's last entry, where a
    draft begins after the prefill. The head unrolled from start j foresees, at step s = 1, 2, …, the answer's token
    j + s, from the embedding of the one before it.
    """

    following: Tensor  # [b, n] int64: the token after each entry's
    features: Tensor  # [b, n, layers * hidden] bfloat16, or what `to` made of it
    said: Tensor  # [b, a + 1] int64: the answer
    finals: Tensor  # [b, a + 1, hidden] bfloat16: the stream that the target chose said[j] from
    first_start: Tensor  # [b] int64: entry of start 0
    said_lengths: Tensor  # [b] int64

    @property
    def starts(self) -> int:
        return self.said.shape[1] - 1

    def valid(self, step: int) -> Tensor:
        """[b, a] whether start j still has a token to foresee at `step`."""
        places = torch.arange(self.starts, device=self.said.device)
        return places[None] + step < self.said_lengths[:, None]

    def to(self, device: torch.device, dtype: torch.dtype) -> Window:
        """With features in `dtype`, which the first matrix product reads as they are."""
        return Window(
            self.following.to(device), self.features.to(device, dtype), self.said.to(device), self.finals.to(device),
            self.first_start.to(device), self.said_lengths.to(device),
        )  # fmt: skip


def window_of(answers: Sequence[Answer], recordings: Sequence[Recording]) -> Window:
    """Pad and stack."""
    following = [np.array(answer.tokens[1:], np.int64) for answer in answers]
    said = [np.array(answer.said, np.int64) for answer in answers]
    return Window(
        following=torch.from_numpy(_padded(following)),
        features=torch.from_numpy(_padded([r.features for r in recordings])).view(torch.bfloat16),
        said=torch.from_numpy(_padded(said)),
        finals=torch.from_numpy(_padded([r.finals for r in recordings])).view(torch.bfloat16),
        first_start=torch.tensor([len(answer.prompt) - 1 for answer in answers]),
        said_lengths=torch.tensor([len(answer.said) for answer in answers]),
    )


def _padded(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    longest = max(len(array) for array in arrays)
    stacked = np.zeros((len(arrays), longest, *arrays[0].shape[1:]), arrays[0].dtype)
    for line, array in zip(stacked, arrays, strict=True):
        line[: len(array)] = array
    return stacked

"""Rows of a pass for prompts: as many as there is time for, shared among the unfinished prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.generation.engine.cost import PassCost
from services.generation.target.arrays import Float64

_LEAST = 16  # rows
_SURE = 0.25  # share of the rows that is split evenly, so that a long prompt advances in spite of many short ones


@dataclass(frozen=True, slots=True)
class Prompt:
    """An unfinished prompt: `left` tokens after `done` tokens; `given`: counter of its tenant."""

    left: int
    done: int
    given: float = 0.0


def rows_of_prompts(
    prompts: Sequence[Prompt], *, most: int, seconds: float, cost: PassCost, decoding: int
) -> list[int]:  # fmt: skip
    """Rows for each of `prompts`, by arrival, in a pass that `decoding` sequences take part in; `most` in all.

    A quarter is split evenly. The rest goes to the tenant with the lowest counter, and within a tenant to the prompt
    with the fewest tokens left: this minimises the sum of the times to the first token. Together they make the pass at
    most `seconds` longer. But they get at least `_LEAST` rows, and two for each decoding sequence: otherwise, if
    prompts are slower than outputs, few sequences would decode at a time, and passes would be inefficient.
    """
    rows = [0] * len(prompts)
    if not prompts or most < 1:
        return rows
    passes = cost.of_each(decoding + np.arange(most + 1))
    pool = _Rows(passes - passes[0], seconds if decoding else np.inf, max(_LEAST, 2 * decoding), cost)
    sure = max(1, int(_SURE * pool.fitting / len(prompts)))
    turns = [(place, sure) for place in range(len(prompts))]
    turns += [(i, most) for i in sorted(range(len(prompts)), key=lambda i: (prompts[i].given, prompts[i].left))]
    for place, share in turns:
        prompt = prompts[place]
        rows[place] += pool.take(prompt, min(share, prompt.left) - rows[place], new=not rows[place])
    return rows


class _Rows:
    """The rows and the time that are left of a pass."""

    def __init__(self, base: Float64, seconds: float, least: int, cost: PassCost) -> None:
        """`base` [rows + 1]: seconds that 0, 1, … rows add to the pass, without reading their caches.
        `least` rows are allowed whatever their time.
        """
        self._base, self._seconds, self._least, self._cost = base, seconds, least, cost
        self._used, self._seeing = 0, 0.0

    @property
    def fitting(self) -> int:
        """The rows that there is time for, without reading caches."""
        in_time = int(np.searchsorted(self._base, self._seconds, side="right")) - 1
        return min(max(in_time, self._least), len(self._base) - 1)

    def take(self, prompt: Prompt, most: int, *, new: bool) -> int:
        """Take as many rows for a prompt as fit, at most `most`. `new`: its cache is read for the first row."""
        wanted = np.arange(min(most, len(self._base) - 1 - self._used) + 1)
        if len(wanted) < 2:
            return 0
        seen = self._cost.seen * prompt.done * wanted + (self._cost.key * prompt.done if new else 0.0)
        fits = self._base[self._used + wanted] + self._seeing + seen <= self._seconds
        fits |= self._used + wanted <= self._least
        fits[0] = True  # no rows read no cache, even if there is no time left
        count = int(wanted[fits][-1])
        self._used += count
        self._seeing += float(seen[count]) if count else 0.0
        return count

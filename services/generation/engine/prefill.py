"""The rows of a pass that prompts get: as many as have time in it, shared among the prompts that are not done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.generation.engine.cost import PassCost
from services.generation.target.arrays import Float64

_LEAST = 16  # rows
_SURE = 0.25  # of the rows are shared by all prompts alike: however many shorter ones come, a long one goes on


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that is not done: `left` tokens after the `done` ones; `given` is what its tenant has had by now."""

    left: int
    done: int
    given: float = 0.0


def rows_of_prompts(
    prompts: Sequence[Prompt], *, most: int, seconds: float, cost: PassCost, decoding: int
) -> list[int]:  # fmt: skip
    """Rows for each of `prompts`, by arrival, in a pass that `decoding` sequences take part in; `most` in all.

    A quarter is for all of them alike. The rest goes to the tenant that was given least, and of one tenant to the
    prompt with the fewest tokens left: so the sum of the times to the first token is smallest. All together make the
    pass `seconds` longer at most. But they get `_LEAST` rows, and two for each sequence that decodes, in any case:
    where prompts are computed slower than outputs, few sequences decode at a time, and every pass is dear.
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
    """The rows that are left of a pass, and its time."""

    def __init__(self, base: Float64, seconds: float, least: int, cost: PassCost) -> None:
        """`base` [rows + 1]: seconds that 0, 1, … rows add to the pass, what they see of their caches not counted.
        `least` rows are there whatever their time.
        """
        self._base, self._seconds, self._least, self._cost = base, seconds, least, cost
        self._used, self._seeing = 0, 0.0

    @property
    def fitting(self) -> int:
        """How many rows there is time for, if they see nothing."""
        in_time = int(np.searchsorted(self._base, self._seconds, side="right")) - 1
        return min(max(in_time, self._least), len(self._base) - 1)

    def take(self, prompt: Prompt, most: int, *, new: bool) -> int:
        """Take as many rows for a prompt as fit, `most` at most. `new`: its cache has to be fetched for the first."""
        wanted = np.arange(min(most, len(self._base) - 1 - self._used) + 1)
        if len(wanted) < 2:
            return 0
        seen = self._cost.seen * prompt.done * wanted + (self._cost.key * prompt.done if new else 0.0)
        fits = self._base[self._used + wanted] + self._seeing + seen <= self._seconds
        fits |= self._used + wanted <= self._least
        fits[0] = True  # for no rows nothing is fetched, however late it is
        count = int(wanted[fits][-1])
        self._used += count
        self._seeing += float(seen[count]) if count else 0.0
        return count

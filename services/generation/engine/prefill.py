"""Rows of a pass for prompts: as many as there is time for, shared among the unfinished prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.generation.engine.cost import PassCost
from services.generation.target.arrays import Float64

_LEAST = 16  # rows
_LATEST = 3.0
"""Times its tokens that the equal share of a prompt may be when it gets its last rows."""
_AGE = 0.4
"""Tokens by which a prompt counts as shorter for each row of its equal share. With less, the longest prompts wait
longer; with more, short ones do (a simulation of 16 and 64 callers with prompts of Spec-Bench's lengths)."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """An unfinished prompt: `left` tokens after `done` tokens; `counter` of its `tenant`."""

    left: int
    done: int
    counter: float = 0.0
    tenant: str | None = None


@dataclass(slots=True)
class _EqualShare:
    """The `rows` that a prompt would have got if each pass had been shared equally, among tenants and then among the
    prompts of each. `tokens`: of the prompt.
    """

    tokens: int
    rows: float = 0.0

    def due(self, left: int) -> int:
        """Rows that a prompt with `left` tokens gets before others: none until its equal share is `_LATEST - 1` times
        its tokens, and then as many as this grows by. A few rows are not worth fetching its cache.
        """
        rows = min(left, int(self.rows + left - _LATEST * self.tokens))
        return rows if rows >= min(_LEAST, left) else 0


class PromptRows:
    """Shares the rows of passes among prompts.

    Rows go to the tenant with the lowest counter, and within a tenant to the shortest prompt, but a prompt counts as
    shorter the longer it waits. Due rows come first, so that each prompt is computed when its equal share is `_LATEST`
    times its tokens, or a few passes later: they become due no faster than equal shares grow, which is all that a pass
    has.
    """

    def __init__(self, cost: PassCost) -> None:
        self._cost = cost
        self._shares: dict[Hashable, _EqualShare] = {}  # by sequence

    def forget(self, sequence: Hashable) -> None:
        """A sequence has ended."""
        self._shares.pop(sequence, None)

    def of(self, prompts: Mapping[Any, Prompt], *, most: int, seconds: float, decoding: int) -> list[int]:
        """Rows for each of `prompts`, by sequence, in a pass that `decoding` sequences take part in; `most` in all.

        The pass takes at most `seconds` longer than a pass over one row: the more sequences decode, the fewer rows
        prompts get, or the outputs of many would wait the longest. But prompts get at least `_LEAST` rows.
        """
        rows = dict.fromkeys(prompts, 0)
        if not prompts or most < 1:
            return list(rows.values())
        added = self._cost.of_each(decoding + np.arange(most + 1)) - self._cost.of(1)
        pool = _Rows(added, seconds if decoding else np.inf, self._cost)
        shares = {sequence: self._share(sequence, prompt.left) for sequence, prompt in prompts.items()}
        for sequence, share in _turns(prompts, shares):
            prompt, taken = prompts[sequence], rows[sequence]
            rows[sequence] += pool.take(prompt, min(share, prompt.left - taken), new=not taken)
        tenants = Counter(prompt.tenant for prompt in prompts.values())
        of_tenant = sum(rows.values()) / len(tenants)
        for sequence, prompt in prompts.items():
            shares[sequence].rows += of_tenant / tenants[prompt.tenant]
        return list(rows.values())

    def _share(self, sequence: Hashable, left: int) -> _EqualShare:
        share = self._shares.get(sequence)
        if share is None or share.tokens < left:  # new, or preempted
            share = self._shares[sequence] = _EqualShare(left)
        return share


def _turns(prompts: Mapping[Any, Prompt], shares: Mapping[Any, _EqualShare]) -> list[tuple[Any, int]]:
    """The sequences in the order of their turns, each with its rows at most."""
    due = [(sequence, rows) for sequence, prompt in prompts.items() if (rows := shares[sequence].due(prompt.left))]
    due.sort(key=lambda turn: -shares[turn[0]].rows / shares[turn[0]].tokens)
    ages = {sequence: share.tokens - _AGE * share.rows for sequence, share in shares.items()}
    order = sorted(prompts, key=lambda sequence: (prompts[sequence].counter, ages[sequence]))
    return due + [(sequence, prompts[sequence].left) for sequence in order]


class _Rows:
    """The rows and the time that are left of a pass."""

    def __init__(self, base: Float64, seconds: float, cost: PassCost) -> None:
        """`base` [rows + 1]: seconds of a pass with 0, 1, … rows of prompts beyond those of one row, without reading
        the prompts' caches. `_LEAST` rows are allowed whatever their time.
        """
        self._base, self._seconds, self._cost = base, seconds, cost
        self._used, self._seeing = 0, 0.0

    def take(self, prompt: Prompt, most: int, *, new: bool) -> int:
        """Take as many rows for a prompt as fit, at most `most`. `new`: its cache is read for the first row."""
        wanted = np.arange(min(most, len(self._base) - 1 - self._used) + 1)
        if len(wanted) < 2:
            return 0
        seen = self._cost.seen * prompt.done * wanted + (self._cost.key * prompt.done if new else 0.0)
        fits = self._base[self._used + wanted] + self._seeing + seen <= self._seconds
        fits |= self._used + wanted <= _LEAST
        fits[0] = True  # no rows read no cache, even if there is no time left
        count = int(wanted[fits][-1])
        self._used += count
        self._seeing += float(seen[count]) if count else 0.0
        return count

"""Measured costs: seconds of a pass and of a draft on this device, and how recent ones compare with those."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from services.generation.engine.numba_cache import relaxed
from services.generation.target.arrays import Float64, Int64

MARGIN = 1.25
"""Factor on the time that a draft adds. Of many candidates the one with the luckiest estimate is drafted, and its true
value is lower."""
NEWEST, NEWEST_PLAIN = 0.05, 0.15
"""Weights of the newest measured time, and of the newest pass without drafts, which is measured more seldom: the last
20 and the last 7 decide, as the load of a machine changes."""
PRIOR = 0.5
"""Weight of the times measured at start, in squares of shares of a pass or of a draft: about one sample or two."""
OUTLIER = 3.0
"""Times its expected value that a sample may be at most: a longer pass was held up by another program."""
RANGE = 20.0
"""Factor between a cost as measured at start and as followed later: a machine's load explains no more."""
EXPLORE_EVERY = 32
"""Decisions of one kind until one of the other kind: passes with drafts until one without, whose time is the only
measure of a token without drafts, and refused drafts until one is made, to measure the present cost of drafts."""


@dataclass(frozen=True, slots=True)
class PassCost:
    """Seconds of a pass over r rows of s sequences with k cached tokens in all:

        base(r) + r * seen * k / s + k * key

    `base` goes through the measured `seconds` at `rows`, in straight lines: kernels take rows in groups, so that the
    second row may cost more than the third and the fourth together. A sequence's cache is fetched from memory once for
    all of its rows, `key` for each token; each row then computes with the tokens that it sees, `seen` for each.
    """

    rows: tuple[int, ...]  # ascending, two at least
    seconds: tuple[float, ...]  # ascending
    key: float = 0.0
    seen: float = 0.0

    @classmethod
    def line(cls, fixed: float, row: float, key: float = 0.0, seen: float = 0.0) -> PassCost:
        """`fixed` and `row` for each row."""
        return cls((1, 2), (fixed + row, fixed + 2 * row), key, seen)

    @classmethod
    def measured(cls, samples: Sequence[tuple[int, float]], key: float = 0.0, seen: float = 0.0) -> PassCost:
        """A cost through (rows, seconds) of passes, rows ascending, two at least.

        Noise only ever adds, so fewer rows take no longer than more were seen to take; each row costs something.
        """
        rows = np.array([count for count, _ in samples])
        seconds = np.minimum.accumulate(np.array([measured for _, measured in samples])[::-1])[::-1]
        return cls(tuple(rows.tolist()), tuple((seconds + 1e-3 * seconds[0] * (rows - rows[0])).tolist()), key, seen)

    def of(self, rows: int, keys: int = 0, sequences: int = 1) -> float:
        """Seconds of one pass. Steps ask between passes, when numpy's own code has left the caches."""
        after = min(max(bisect_left(self.rows, rows), 1), len(self.rows) - 1)
        (first, last), (least, most) = self.rows[after - 1 : after + 1], self.seconds[after - 1 : after + 1]
        base = least + max(rows - first, 0) * (most - least) / (last - first)
        return base + rows * (self.seen * keys / sequences) + self.key * keys

    def of_each(self, rows: Int64) -> Float64:
        """Seconds of passes over each of these numbers of rows, without keys."""
        last, beyond = self.seconds[-1], np.maximum(rows - self.rows[-1], 0)
        slope = (last - self.seconds[-2]) / (self.rows[-1] - self.rows[-2])
        return np.interp(rows, self.rows, self.seconds) + slope * beyond

    def of_drafts(self, most: int, *, drafting: int, sequences: int, prefill_rows: int, keys: int) -> Float64:
        """[most + 1] a sequence's share of a pass over one row of each, with 0 to `most` draft rows of its own and as
        many of each of the others of `drafting`; the time that drafts add counts `MARGIN` times.

        Drafts add to a pass that has `prefill_rows` too, but those do not raise the price of a token: a draft token
        saves a share of a later pass, without them.
        """
        more = _passes(self, prefill_rows + sequences, drafting, most)
        seen = MARGIN * self.seen * keys / sequences
        return _shares(self.of(sequences, keys, sequences) / sequences, more, MARGIN / drafting, seen)


@lru_cache(maxsize=256)
def _passes(cost: PassCost, rows: int, step: int, most: int) -> Float64:
    """[most + 1] the time that `step` rows, twice and three times as many, and so on, add to a pass over `rows`."""
    passes = cost.of_each(rows + step * np.arange(most + 1))
    more: Float64 = passes - passes[0]
    return more


@relaxed
def _shares(plain: float, more: Float64, factor: float, seen: float) -> Float64:
    shares = np.empty(len(more))
    for nodes in range(len(more)):
        shares[nodes] = plain + factor * more[nodes] + seen * nodes
    return shares


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step of a model that drafts: `fixed`, and `row` for each of its rows."""

    fixed: float
    row: float

    @classmethod
    def fit(cls, samples: Sequence[tuple[int, float]]) -> StepCost:
        """Least squares line through (rows, seconds), with neither coefficient below 1 % of the cheapest step."""
        least = 0.01 * min(seconds for _, seconds in samples)
        squares = LeastSquares((0.0, 0.0))
        for rows, seconds in samples:
            squares.add(1.0, rows, seconds)
        row = max(squares.solve()[1], least) if len({rows for rows, _ in samples}) > 1 else least
        return cls(fixed=max(squares.first(row), least), row=row)


class LeastSquares:
    """Weighted least squares of y = a * u + b * v, one sample at a time, with a prior for a and b."""

    def __init__(self, prior: tuple[float, float], weight: float = 0.0) -> None:
        """`weight` of the prior, in squares of u and of v."""
        self._prior, self._weight = prior, weight
        self._uu = self._vv = weight
        self._uv = 0.0
        self._uy, self._vy = weight * prior[0], weight * prior[1]

    def decay(self, kept: float) -> None:
        """Weigh earlier samples by `kept`; the prior keeps its weight."""
        lost, (a, b) = (1.0 - kept) * self._weight, self._prior
        self._uu, self._vv, self._uv = kept * self._uu + lost, kept * self._vv + lost, kept * self._uv
        self._uy, self._vy = kept * self._uy + lost * a, kept * self._vy + lost * b

    def add(self, u: float, v: float, y: float) -> None:
        self._uu, self._uv, self._vv = self._uu + u * u, self._uv + u * v, self._vv + v * v
        self._uy, self._vy = self._uy + u * y, self._vy + v * y

    def first(self, b: float) -> float:
        """The best a for a given b."""
        return (self._uy - b * self._uv) / self._uu

    def solve(self) -> tuple[float, float]:
        """The best a and b."""
        determinant = self._uu * self._vv - self._uv * self._uv
        return (
            (self._vv * self._uy - self._uv * self._vy) / determinant,
            (self._uu * self._vy - self._uv * self._uy) / determinant,
        )


class Pace:
    """Recent pass times relative to the cost model. Both change with the load of the machine, and a pass after a draft
    finds less of its weights in the caches.

    Passes without drafts take `usual` times as long as the model expects: a mean, newer passes counting more. They
    alone measure the cost of a token without drafts, so one is `due` among many with drafts. Drafts add `onset`, in
    passes without drafts, at any number of rows, and `draft_factor` times the model's cost of these rows. Passes
    without drafts let both be forgotten, or drafts that once looked too expensive would never be measured again.
    """

    def __init__(self) -> None:
        self.last = self.usual = self.draft_factor = 1.0  # last: the last pass over its expected time
        self.onset = 0.0
        self._plain = self._drafted = 0  # passes without drafts; with drafts since the last one without
        self._added = LeastSquares((0.0, 1.0), PRIOR)

    @property
    def due(self) -> bool:
        """Whether it is time for a pass without drafts. The first ones come after an eighth, a quarter and a half of
        the passes with drafts between later ones.
        """
        return self._drafted >= EXPLORE_EVERY >> max(3 - self._plain, 0)

    @property
    def known(self) -> bool:
        """Whether there has been a pass without drafts."""
        return self._plain > 0

    def of(self, pass_cost: Float64) -> Float64:
        """Expected seconds, given the model's, of passes with 0, 1, … draft rows."""
        expected: Float64 = self.draft_factor * (pass_cost - pass_cost[0]) + (1.0 + MARGIN * self.onset) * pass_cost[0]
        expected[0] = pass_cost[0]
        return self.usual * expected

    def skipped(self) -> None:
        """The last pass was not timed."""
        self.last = 1.0

    def took(self, seconds: float, plain: float, more: float) -> None:
        """Learn from a pass of `seconds`, for which the model expects `plain` without drafts and `more` for them.

        A pass of 0 seconds was not timed: k-scores are measured with a constant clock, and draft in every pass.
        """
        if seconds <= 0.0:
            self.skipped()
            return
        x, took = more / plain, seconds / plain
        expected = self.usual * (1.0 + (self.onset + self.draft_factor * x if more else 0.0))
        took = min(max(took, 1.0 / RANGE), OUTLIER * expected)
        self.last = took / expected
        if more:
            self._drafted += 1
            self._added.decay(1.0 - NEWEST)
            self._added.add(1.0, x, took / self.usual - 1.0)
        else:
            self._drafted, self._plain = 0, self._plain + 1
            self._added.decay(1.0 - NEWEST)
            self.usual += max(NEWEST_PLAIN, 1.0 / self._plain) * (took - self.usual)
        self.draft_factor = _within_range(self._added.solve()[1])
        self.onset = max(self._added.first(self.draft_factor), 0.0)


class DraftPace:
    """Recent draft times relative to those measured at start, when other programs may have used the machine.

    Steps take `step` times as long, and the rest of a draft `once` times.
    """

    def __init__(self) -> None:
        self.once = self.step = 1.0
        self._parts = LeastSquares((1.0, 1.0), PRIOR)

    def took(self, seconds: float, once: float, steps: float) -> None:
        """Learn from a draft of `seconds`, whose steps would take `steps` as measured at start, the rest `once`."""
        u, v = once / (once + steps), steps / (once + steps)
        y = min(seconds / (once + steps), OUTLIER * (self.once * u + self.step * v))
        self._parts.decay(1.0 - NEWEST)
        self._parts.add(u, v, y)
        self.once, self.step = map(_within_range, self._parts.solve())


def _within_range(factor: float) -> float:
    return min(max(factor, 1.0 / RANGE), RANGE)

"""The cost model: seconds of a pass on this device, and from which probability on draft tokens pay."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from services.generation.engine.numba_cache import relaxed
from services.generation.target.arrays import Float64, Int64

MARGIN = 1.25  # times its cost that a draft has to be worth: estimates err, and a draft costs more than rows


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
        """Through (rows, seconds) of passes, rows ascending, two at least.

        Noise only ever adds, so that fewer rows take no longer than more were seen to take; each row costs something.
        """
        rows = np.array([count for count, _ in samples])
        seconds = np.minimum.accumulate(np.array([measured for _, measured in samples])[::-1])[::-1]
        return cls(tuple(rows.tolist()), tuple((seconds + 1e-3 * seconds[0] * (rows - rows[0])).tolist()), key, seen)

    def of(self, rows: int, keys: int = 0, sequences: int = 1) -> float:
        """`of_each` for one number, which steps ask for between passes, when numpy's own code has left the caches."""
        after = min(max(bisect_left(self.rows, rows), 1), len(self.rows) - 1)
        (first, last), (least, most) = self.rows[after - 1 : after + 1], self.seconds[after - 1 : after + 1]
        base = least + max(rows - first, 0) * (most - least) / (last - first)
        return base + rows * (self.seen * keys / sequences) + self.key * keys

    def of_each(self, rows: Int64, keys: int = 0, sequences: int = 1) -> Float64:
        """Passes over each of these numbers of rows."""
        last, beyond = self.seconds[-1], np.maximum(rows - self.rows[-1], 0)
        slope = (last - self.seconds[-2]) / (self.rows[-1] - self.rows[-2])
        base = np.interp(rows, self.rows, self.seconds) + slope * beyond
        return base + rows * (self.seen * keys / sequences) + self.key * keys

    def of_drafts(self, most: int, *, drafting: int, sequences: int, prefill_rows: int, keys: int) -> Float64:
        """[most + 1] a sequence's share of a pass over one row of each, with 0 to `most` draft rows of its own and as
        many of each of the others of `drafting`; what drafts add counts `MARGIN` times.

        Drafts add to a pass that has `prefill_rows` too, but those make no token dearer: what a draft token saves is a
        share of a later pass, without them.
        """
        more = _passes(self, prefill_rows + sequences, drafting, most)
        seen = MARGIN * self.seen * keys / sequences
        return _shares(self.of(sequences, keys, sequences) / sequences, more, MARGIN / drafting, seen)

    @property
    def row_share(self) -> float:
        """The cost of a row in passes of one row, on the average of all rows that were measured."""
        more = self.rows[-1] - self.rows[0]
        return min(1.0, (self.seconds[-1] - self.seconds[0]) / more / self.of(1))


@lru_cache(maxsize=256)
def _passes(cost: PassCost, rows: int, step: int, most: int) -> Float64:
    """[most + 1] what `step` rows, twice and three times as many, and so on, add to a pass over `rows`."""
    passes = cost.of_each(rows + step * np.arange(most + 1))
    more: Float64 = passes - passes[0]
    return more


@relaxed
def _shares(plain: float, more: Float64, factor: float, seen: float) -> Float64:
    shares = np.empty(len(more))
    for nodes in range(len(more)):
        shares[nodes] = plain + factor * more[nodes] + seen * nodes
    return shares


@relaxed
def breakeven(shares: Float64) -> float:
    """Chance of acceptance below which no number of draft tokens pays, by [rows] shares of passes with 0, 1, … draft
    rows: the least that a row costs among any number of them, beside what a token costs without drafts.
    """
    least = 1.0
    for nodes in range(1, len(shares)):
        least = min(least, (shares[nodes] - shares[0]) / (nodes * shares[0]))
    return least


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step of a model that drafts: `fixed`, and `row` for each of its rows."""

    fixed: float
    row: float

    @classmethod
    def fit(cls, samples: Sequence[tuple[int, float]]) -> StepCost:
        """Least squares line through (rows, seconds), with neither coefficient below 1 % of the cheapest step."""
        count = len(samples)
        mean_rows = sum(rows for rows, _ in samples) / count
        mean_seconds = sum(seconds for _, seconds in samples) / count
        spread = sum((rows - mean_rows) ** 2 for rows, _ in samples)
        slope = sum((rows - mean_rows) * (seconds - mean_seconds) for rows, seconds in samples) / (spread or 1.0)
        least = 0.01 * min(seconds for _, seconds in samples)
        row = max(slope, least)
        return cls(fixed=max(mean_seconds - row * mean_rows, least), row=row)


_FASTEST, _SLOWEST = 0.1, 3.0
"""Bounds on a measured time over the expected one: less is a fault of the clock, more a pass that was held up."""
_NEWEST, _CONTROL = 0.05, 0.15
"""Weights of the newest pass, and of the newest pass without drafts if the one before had drafts."""
_FORGOTTEN = 0.01
"""Weight that each pass without drafts takes from what is known of drafts."""
_LEAST_FACTOR, _MOST_FACTOR = 0.2, 4.0
"""Bounds on the cost of draft rows over the cost model's."""
_PRIOR_PASSES, _PRIOR_SQUARES = 4.0, 0.4
"""Weight of the cost model beside measured passes: passes, and squares of the cost that drafts add."""
_SOON, _LATE = 4, 32
"""Passes with drafts until the first control without drafts, and until each later one."""


class LeastSquares:
    """Weighted least squares of y = a * u + b * v, one sample at a time, with a prior for a and b.

    `squares`: the weight of the prior, in squares of u and of v.
    """

    def __init__(self, squares: tuple[float, float], prior: tuple[float, float]) -> None:
        (self._uu, self._vv), self._uv = squares, 0.0
        self._prior_uu, self._prior_vv = squares
        self._uy, self._vy = squares[0] * prior[0], squares[1] * prior[1]
        self._prior = prior

    def decay(self, kept: float) -> None:
        """Weigh earlier samples by `kept`; the prior keeps its weight."""
        lost, (a, b) = 1.0 - kept, self._prior
        self._uu, self._vv = kept * self._uu + lost * self._prior_uu, kept * self._vv + lost * self._prior_vv
        self._uv *= kept
        self._uy = kept * self._uy + lost * self._prior_uu * a
        self._vy = kept * self._vy + lost * self._prior_vv * b

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
    passes without drafts, however many rows they have, and `draft_factor` times the model's cost of these rows.
    Passes without drafts let both be forgotten: drafts that look too expensive to be tried would otherwise never be
    measured again.
    """

    def __init__(self) -> None:
        self.last = self.usual = self.draft_factor = 1.0  # last: the last pass over what was expected of it
        self.onset = 0.0
        self._plain = self._drafted = 0  # passes without drafts; with drafts since the last one without
        self._added = LeastSquares((_PRIOR_PASSES, _PRIOR_SQUARES), (0.0, 1.0))

    @property
    def due(self) -> bool:
        """Whether it is time for a pass without drafts."""
        return self._drafted >= min(_SOON * (1 + self._plain), _LATE)

    @property
    def known(self) -> bool:
        """Whether there has been a pass without drafts."""
        return self._plain > 0

    def of(self, pass_cost: Float64) -> Float64:
        """Expected seconds, given the model's, of passes with 0, 1, … draft rows."""
        expected: Float64 = self.draft_factor * (pass_cost - pass_cost[0]) + (1.0 + MARGIN * self.onset) * pass_cost[0]
        expected[0] = pass_cost[0]
        return self.usual * expected

    def took(self, seconds: float, plain: float, more: float) -> None:
        """Learn from a pass of `seconds`, for which the model expects `plain` without drafts and `more` for them.

        A pass that was not timed, 0.0, is ignored.
        """
        self.last = 1.0
        x, took, after_drafts = more / plain, seconds / plain, self._drafted > 0
        expected = self.usual * (1.0 + (self.onset + self.draft_factor * x if more else 0.0))
        if took < _FASTEST * expected:
            return
        took = min(took, _SLOWEST * expected)
        self.last = took / expected
        if more:
            self._drafted += 1
            self._added.decay(1.0 - _NEWEST)
            self._added.add(1.0, x, took / self.usual - 1.0)
        else:
            self._drafted, self._plain = 0, self._plain + 1
            self._added.decay(1.0 - _FORGOTTEN)
            self.usual += max(_CONTROL if after_drafts else _NEWEST, 1.0 / self._plain) * (took - self.usual)
        self.draft_factor = min(max(self._added.solve()[1], _LEAST_FACTOR), _MOST_FACTOR)
        self.onset = max(self._added.first(self.draft_factor), 0.0)


_TIMED = 0.5
"""Weight of the drafts that were timed at start, in squares of shares of a draft."""
_LEAST_SHARE, _MOST_SHARE = 0.05, 20.0
"""Bounds on the cost of a draft over its cost as timed at start."""


class DraftPace:
    """Recent draft times relative to those timed at start, when other programs may have used the machine.

    Steps take `step` times as long, and the rest of a draft `once` times.
    """

    def __init__(self) -> None:
        self.once = self.step = 1.0
        self._parts = LeastSquares((_TIMED, _TIMED), (1.0, 1.0))

    def took(self, seconds: float, once: float, steps: float) -> None:
        """Learn from a draft of `seconds`, whose steps would take `steps` as timed, and the rest of it `once`."""
        u, v = once / (once + steps), steps / (once + steps)
        y = min(seconds / (once + steps), _SLOWEST * (self.once * u + self.step * v))
        self._parts.decay(1.0 - _NEWEST)
        self._parts.add(u, v, y)
        self.once, self.step = (min(max(each, _LEAST_SHARE), _MOST_SHARE) for each in self._parts.solve())

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


_FASTEST, _SLOWEST = 0.1, 3.0  # times what is expected: no clock has measured less, something held up what takes longer
_NEWEST = 0.05  # weight of the newest pass
_CHEAPEST, _DEAREST = 0.2, 4.0  # times what the cost model says of drafts
_SURE = 0.02  # variance of what drafts add, in passes without them, from which on passes say more than the cost model


class Pace:
    """What passes take of late beside what the cost model says: those without drafts `usual` times as much, and what
    drafts add to them `dearness` times as much again. Both change with what else uses the machine and its memory.

    They are a line through what passes took by what drafts were to add, both in passes without drafts: least squares,
    newer passes counting more, and the cost model's own slope with the weight of `_SURE`.
    """

    def __init__(self) -> None:
        self.last = self.usual = self.dearness = 1.0  # last: the last pass, times what is expected of it
        self._passes = 0
        self._x = self._y = self._xx = self._xy = 0.0  # means

    def of(self, shares: Float64) -> Float64:
        """What shares of passes with 0, 1, … draft rows take of late."""
        of_late: Float64 = self.usual * (shares[0] + self.dearness * (shares - shares[0]))
        return of_late

    def took(self, seconds: float, plain: float, more: float) -> None:
        """A pass took so long, where the cost model expects `plain` without drafts and `more` for them."""
        self.last = 1.0
        x, y = more / plain, seconds / plain
        expected = self.usual * (1.0 + self.dearness * x)
        if y < _FASTEST * expected:
            return
        if self._passes:
            y = min(y, _SLOWEST * expected)
            self.last = y / expected
        self._passes += 1
        new = max(_NEWEST, 1.0 / self._passes)
        self._x += new * (x - self._x)
        self._y += new * (y - self._y)
        self._xx += new * (x * x - self._xx)
        self._xy += new * (x * y - self._xy)
        usual = self._y / (1.0 + self._x)
        slope = (self._xy - self._x * self._y + _SURE * usual) / (self._xx - self._x * self._x + _SURE)
        usual = max(self._y - slope * self._x, 0.1 * usual)
        self.dearness = min(max(slope / usual, _CHEAPEST), _DEAREST)
        self.usual = self._y / (1.0 + self.dearness * self._x)

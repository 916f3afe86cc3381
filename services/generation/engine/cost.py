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
_NEWEST, _CONTROL = 0.05, 0.15  # weights of the newest pass, and of the newest of those without drafts among others
_FORGOTTEN = 0.01  # of what is known of drafts, by each pass without one
_CHEAPEST, _DEAREST = 0.2, 4.0  # times what the cost model says of drafts
_SURE_OF_NONE, _SURE_OF_ONE = 4.0, 0.4  # what the cost model counts for: passes, and squares of what drafts add
_SOON, _LATE = 4, 32  # passes with drafts until the first one without, and until each later one


class Pace:
    """What passes take of late beside what the cost model says. Both change with what else uses the machine, and a pass
    behind a draft finds less of its weights in the caches.

    Those without drafts take `usual` times as much: a mean, newer passes counting more. They alone tell what a token
    costs without drafts, so that one is `due` among many with drafts. Drafts take `onset`, in passes without drafts,
    however many they are, and `dearness` times what the model says: least squares, beside which the model counts, too.
    Passes without drafts let it be forgotten: where drafts look too dear to be tried, no other pass would correct it.
    """

    def __init__(self) -> None:
        self.last = self.usual = self.dearness = 1.0  # last: the last pass, times what is expected of it
        self.onset = 0.0
        self._plain = self._drafted = 0  # passes without drafts; with drafts since
        self._controls = 0  # passes without drafts
        self._n = self._x = self._xx = self._y = self._xy = 0.0  # sums over passes with drafts

    @property
    def due(self) -> bool:
        """Whether it is time for a pass without drafts."""
        return self._drafted >= min(_SOON * (1 + self._controls), _LATE)

    @property
    def known(self) -> bool:
        """Whether there has been a pass without drafts."""
        return self._controls > 0

    def of(self, shares: Float64) -> Float64:
        """What shares of passes with 0, 1, … draft rows take of late."""
        of_late: Float64 = self.dearness * (shares - shares[0]) + (1.0 + MARGIN * self.onset) * shares[0]
        of_late[0] = shares[0]
        return self.usual * of_late

    def took(self, seconds: float, plain: float, more: float) -> None:
        """A pass took so long, where the cost model expects `plain` without drafts and `more` for them. What was not
        timed, 0.0, says nothing.
        """
        self.last = 1.0
        x, took, drafted = more / plain, seconds / plain, self._drafted
        expected = self.usual * (1.0 + (self.onset + self.dearness * x if more else 0.0))
        if took < _FASTEST * expected:
            return
        self._drafted = drafted + 1 if more else 0
        self._controls += not more
        took = min(took, _SLOWEST * expected)
        self.last = took / expected
        if more:
            self._learn(1.0 - _NEWEST, 1.0, x, took / self.usual - 1.0 - x)
        else:
            self._learn(1.0 - _FORGOTTEN)
            self._plain += 1
            self.usual += max(_CONTROL if drafted else _NEWEST, 1.0 / self._plain) * (took - self.usual)

    def _learn(self, kept: float, more: float = 0.0, x: float = 0.0, y: float = 0.0) -> None:
        """Earlier passes count `kept` times as much; in one `more`, drafts that were to add x have added x + y."""
        self._n, self._x, self._xx = kept * self._n + more, kept * self._x + x, kept * self._xx + x * x
        self._y, self._xy = kept * self._y + y, kept * self._xy + x * y
        n, xx = self._n + _SURE_OF_NONE, self._xx + _SURE_OF_ONE
        dearness = 1.0 + (n * self._xy - self._x * self._y) / (n * xx - self._x * self._x)
        self.dearness = min(max(dearness, _CHEAPEST), _DEAREST)
        self.onset = max((self._y - (self.dearness - 1.0) * self._x) / n, 0.0)


_TIMED = 0.5  # squares of shares of a draft that what was timed at the start counts for
_LEAST_SHARE, _MOST_SHARE = 0.05, 20.0  # times what was timed


class DraftPace:
    """What drafts of a model take of late, beside what was timed at the start, when others may have had the machine:
    steps `step` times as much, and all else of a draft `once` times. Least squares, newer drafts counting more.
    """

    def __init__(self) -> None:
        self.once = self.step = 1.0
        self._oo = self._os = self._ss = self._oy = self._sy = 0.0  # sums over drafts

    def took(self, seconds: float, once: float, steps: float) -> None:
        """A draft took so long, where by what was timed its steps take `steps` and all else `once`."""
        o, s = once / (once + steps), steps / (once + steps)
        y = min(seconds / (once + steps), _SLOWEST * (self.once * o + self.step * s))
        kept = 1.0 - _NEWEST
        self._oo, self._os, self._ss = kept * self._oo + o * o, kept * self._os + o * s, kept * self._ss + s * s
        self._oy, self._sy = kept * self._oy + o * y, kept * self._sy + s * y
        oo, ss, oy, sy = self._oo + _TIMED, self._ss + _TIMED, self._oy + _TIMED, self._sy + _TIMED
        over = oo * ss - self._os * self._os
        self.once = min(max((ss * oy - self._os * sy) / over, _LEAST_SHARE), _MOST_SHARE)
        self.step = min(max((oo * sy - self._os * oy) / over, _LEAST_SHARE), _MOST_SHARE)

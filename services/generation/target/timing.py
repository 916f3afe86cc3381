"""Times of passes of a loaded target, for the engine's cost model.

A clock may raise an exception, which ends a timing; it leaves no blocks in use.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import TypeVar

from services.generation.target.blocks import BLOCK, blocks_for
from services.generation.target.errors import CacheFull
from services.generation.target.kept_results import KeptResults
from services.generation.target.kernels.compilation import user_cache
from services.generation.target.program.team import SLEEPS
from services.generation.target.rows import Rows, RowsBuilder
from services.generation.target.target import Target

_log = logging.getLogger(__name__)

_LENGTH = 3 * BLOCK  # tokens of context in timed passes
_ROWS = (1, 2, 4, 8, 16, 32)
_ROUNDS, _FEWEST = 12, 5
_SECONDS = 1.2  # after which only the fewest rounds are completed: a model of 135 M parameters takes 0.9 s on idle CPUs
_ROUGH_ROWS, _ROUGH_ROUNDS, _ROUGH_SECONDS, _ROUGH_AGAIN = (1, 4, 16), 1, 0.2, 4  # the same for rough times
_AGAIN, _WARM = 8, 0.3
"""Passes over one row before each round, and a time limit for them in seconds: after a pass over many rows, or a pause,
passes are slower or faster than in steady decoding for a while, by what is in the caches and by the memory's speed.
"""
_STEADY, _SETTLING = 0.03, 3.0  # change of time that counts as none, and a limit in seconds for reaching it
_CHANGED, _DISTURBED = 1.1, 1.5
"""Ratios of passes over one row in two rounds from which on the memory's speed has changed, as it does on machines that
share their memory, and from which on another program used it. Multiples of one row differ little by the first.
"""
_BUSY = 0.7
"""Share of the widest passes in which all threads of an undisturbed timing compute: nearly all on idle CPUs, half of it
beside a program that takes one of two, since a team whose members wait for a CPU leaves passes to one thread.
"""
_SEQUENCES, _KEYS = 8, 4 * BLOCK  # sequences, and cached tokens of each, with which the cost of a key is measured
_LONG = 1024  # tokens of the history with which the cost of a visible token is measured
_PAGE = 8  # at most this many slots of a block share a memory page

_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Seconds of passes in steady state: (rows, seconds) by ascending rows, and of one row in each round; `busy` CPUs
    during the widest passes.
    """

    samples: tuple[tuple[int, float], ...]
    rounds: tuple[float, ...]
    busy: float

    @property
    def changed(self) -> bool:
        """Whether the memory's speed changed between rounds, or another program used the machine."""
        return max(self.rounds) > _CHANGED * min(self.rounds)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of passes by rows, of a cached token of one more sequence, and of a cached token for a row that sees
    it.
    """

    passes: tuple[tuple[int, float], ...]
    key: float = 0.0
    seen: float = 0.0

    @property
    def one_row(self) -> float:
        """Seconds of a pass over one row."""
        return self.passes[0][1]


class Interrupted(Exception):
    """A request waits for the target."""


@dataclass(frozen=True, slots=True)
class IdleTiming:
    """Times passes while the engine is idle: a start takes rough times, or those that an earlier start `kept`, as long
    as one row still takes about as long. `use` gets times that no other program has disturbed.
    """

    target: Target
    kept: Timing | None
    use: Callable[[Timing], None]
    clock: Callable[[], float] = time.perf_counter
    cpu_clock: Callable[[], float] = time.process_time

    def __call__(self, request_waits: Callable[[], bool]) -> bool:
        """Measure; returns whether that is done, or else should be tried again when the engine has been idle for a
        while.
        """

        def clock() -> float:
            if request_waits():
                raise Interrupted
            return self.clock()

        try:
            return (self.kept is not None and self._still_right(self.kept, clock)) or self._measure(clock)
        except (Interrupted, CacheFull):
            return False

    def _still_right(self, kept: Timing, clock: Callable[[], float]) -> bool:
        now = time_row(self.target, clock)
        return kept.one_row <= _DISTURBED * now and now <= _DISTURBED * kept.one_row

    def _measure(self, clock: Callable[[], float]) -> bool:
        times = time_passes(self.target, clock, self.cpu_clock)
        if times.changed:
            text = "the memory's speed changed while passes were timed: one row took %.2f to %.2f ms"
            _log.warning(text, 1e3 * min(times.rounds), 1e3 * max(times.rounds))
        low, _, high = quantiles(times.rounds, n=4)  # a median hardly depends on single rounds
        threads = self.target.threads if self.target.device == "cpu" and SLEEPS else 0
        if high > _DISTURBED * low or times.busy < _BUSY * threads:
            _log.info("timing passes again later: other programs left them %.1f of %d CPUs", times.busy, threads)
            return False
        self.use(Timing(times.samples, time_keys(self.target, clock), time_seen(self.target, clock)))
        return True


class KeptTimings:
    """Timings of earlier starts, by default in `$XDG_CACHE_HOME/kolm/timings` or under `~/.cache`.

    They decide how many tokens are drafted and change no token. `kolm doctor` measures again.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._results = KeptResults(folder or user_cache() / "timings")

    def find(self, target: Target) -> Timing | None:
        found = self._results.find(target)
        try:
            if found is None:
                return None
            passes = tuple((int(rows), float(seconds)) for rows, seconds in found["passes"])
            return Timing(passes, float(found["key"]), float(found["seen"]))
        except (ValueError, KeyError, TypeError):
            return None

    def keep(self, target: Target, timing: Timing) -> None:
        self._results.keep(target, {"passes": timing.passes, "key": timing.key, "seen": timing.seen})


def time_passes(
    target: Target,
    clock: Callable[[], float] = time.perf_counter,
    cpu_clock: Callable[[], float] = time.process_time,
    *,
    rough: bool = False,
) -> PassTimes:
    """Times of passes over chains of several widths, after passes over one row until their time no longer drifts.
    `rough`: without these, and few, for a server that measures again when it is idle.

    Each round begins with passes over one row, as in decoding; the median of the rounds is the result for one row.
    Other widths are the median multiple of one row in the same round, so that variations of shared memory's speed
    cancel.
    """
    counts, again = (_ROUGH_ROWS, _ROUGH_AGAIN) if rough else (_ROWS, _AGAIN)
    length = min(_LENGTH, target.config.context_length - counts[-1])
    with target.blocks.lent(length + counts[-1]) as table:
        passes = {count: _chain(table, length, count) for count in counts}
        single, one, busy = passes.pop(counts[0]), list[float](), list[float]()
        multiples: dict[int, list[float]] = {count: [] for count in passes}
        if rough:
            _timed(target, single, clock)  # reads weights that are mapped for the first time
        else:
            _settle(target, single, clock)
        for _ in _rounds(clock, *((_ROUGH_ROUNDS, _ROUGH_SECONDS) if rough else ())):
            one.append(_repeated(target, single, clock, again))
            for count, rows in passes.items():
                cpu_start, seconds = cpu_clock(), _timed(target, rows, clock)
                multiples[count].append(seconds / one[-1])
                if count == counts[-1]:
                    busy.append((cpu_clock() - cpu_start) / seconds)
        alone = median(one)
        samples = ((count, median(each) * alone) for count, each in multiples.items())
        return PassTimes(((counts[0], alone), *samples), tuple(one), median(busy))


def time_row(target: Target, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of a pass over one row, once they no longer drift."""
    length = min(_LENGTH, target.config.context_length - 1)
    with target.blocks.lent(length + 1) as table:
        return _settle(target, _chain(table, length, 1), clock)


def time_keys(target: Target, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that a cached token of one more sequence adds to a pass; 0 if the cache is too small to measure it.

    Compares rows of one sequence with rows of a sequence each, which fetch more keys from memory.
    """
    length = min(_KEYS, target.config.context_length - _SEQUENCES)
    if target.blocks.free < _SEQUENCES * blocks_for(length + 1):
        return 0.0
    tables: list[list[int]] = [[] for _ in range(_SEQUENCES)]
    try:
        for table in tables:
            target.blocks.extend(table, length + 1)
            _touch(target, table)
        alone, together = _chain(tables[0], length - _SEQUENCES, _SEQUENCES), RowsBuilder()
        for table in tables:
            together.add_tree(table, length, [0], [-1])
        seconds = _seconds(target, {1: alone, _SEQUENCES: together.build()}, clock)
        return max(0.0, (median(seconds[_SEQUENCES]) - median(seconds[1])) / ((_SEQUENCES - 1) * length))
    finally:
        for table in tables:
            target.blocks.release(table)


def time_seen(target: Target, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that a cached token adds to each row that sees it; 0 if the context or the cache is too small.

    Compares a long history with a short one, for eight rows and for one row.
    """
    long = min(_LONG, target.config.context_length, target.blocks.free * BLOCK) - _SEQUENCES
    if long < 2 * _LENGTH:
        return 0.0
    with target.blocks.lent(long + _SEQUENCES) as table:
        _touch(target, table)
        passes = {(rows, length): _chain(table, length, rows) for rows in (1, _SEQUENCES) for length in (_LENGTH, long)}
        best = {key: min(seconds) for key, seconds in _seconds(target, passes, clock).items()}
    more = {rows: best[rows, long] - best[rows, _LENGTH] for rows in (1, _SEQUENCES)}
    return max(0.0, (more[_SEQUENCES] - more[1]) / ((_SEQUENCES - 1) * (long - _LENGTH)))


def _seconds(target: Target, passes: Mapping[_Key, Rows], clock: Callable[[], float]) -> dict[_Key, list[float]]:
    """Seconds of each pass in each round."""
    seconds: dict[_Key, list[float]] = {key: [] for key in passes}
    for _ in _rounds(clock):
        for key, rows in passes.items():
            seconds[key].append(_timed(target, rows, clock))
    return seconds


def _settle(target: Target, rows: Rows, clock: Callable[[], float]) -> float:
    """Compute a pass until its time no longer drifts, for at most about `_SETTLING` seconds; returns its seconds."""
    start, before, now = clock(), 0.0, _repeated(target, rows, clock)
    while abs(now - before) > _STEADY * now and clock() - start < _SETTLING:
        before, now = now, _repeated(target, rows, clock)
    return now


def _repeated(target: Target, rows: Rows, clock: Callable[[], float], again: int = _AGAIN) -> float:
    """The median seconds of the later half of some equal passes."""
    start, seconds = clock(), list[float]()
    while len(seconds) < again and clock() - start < _WARM:
        seconds.append(_timed(target, rows, clock))
    return median(seconds[len(seconds) // 2 :])


def _timed(target: Target, rows: Rows, clock: Callable[[], float]) -> float:
    start = clock()
    target.forward(rows)
    return clock() - start


def _rounds(clock: Callable[[], float], fewest: int = _FEWEST, seconds: float = _SECONDS) -> Iterator[int]:
    """Twelve rounds, but at most about `seconds` and at least `fewest`."""
    start = clock()
    for number in range(_ROUNDS):
        if number >= fewest and clock() - start > seconds:
            return
        yield number


def _touch(target: Target, table: list[int]) -> None:
    """Write to every page of a table's blocks: unwritten pages share one page of zeros, which is always cached."""
    slots = [block * BLOCK + offset for block in table for offset in range(0, BLOCK, _PAGE)]
    target.move([table[0] * BLOCK] * len(slots), slots)


def _chain(table: list[int], length: int, count: int) -> Rows:
    rows = RowsBuilder()
    rows.add_tree(table, length, [0] * count, range(-1, count - 1))
    return rows.build()

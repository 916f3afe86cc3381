"""Times passes on this device; the engine's cost model decides the width of drafts by it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median

from services.generation.target.blocks import BLOCK, blocks_for
from services.generation.target.rows import Rows, RowsBuilder
from services.generation.target.target import Target

_LENGTH = 3 * BLOCK  # tokens of context that the timed rows attend to
_ROWS = (1, 2, 4, 8, 16, 32)
_ROUNDS, _FEWEST = 12, 5
_SECONDS = 1.2  # after which no more rounds than the fewest begin: a model of 135 M parameters takes 0.9 s on idle CPUs
_SEQUENCES, _KEYS = 8, 4 * BLOCK  # sequences, and cached tokens of each, that the cost of a key is measured with
_LONG = 1024  # tokens of the history that the cost of seeing a token is measured with
_PAGE = 8  # slots of a block that lie in one page of memory at most


def time_passes(target: Target, clock: Callable[[], float] = time.perf_counter) -> list[tuple[int, float]]:
    """(rows, seconds) of passes over chains of several widths.

    Noise only ever adds to the fastest pass over one row; the others are the usual multiple of what one row took in the
    same round, so that a slow moment of the machine does not make one width look dear.
    """
    length = min(_LENGTH, target.config.context_length - _ROWS[-1])
    table: list[int] = []
    target.blocks.extend(table, length + _ROWS[-1])
    try:
        passes = {count: _chain(table, length, count) for count in _ROWS}
        seconds: dict[int, list[float]] = {count: [] for count in _ROWS}
        for _ in _rounds(clock):
            for count, rows in passes.items():
                start = clock()
                target.forward(rows)
                seconds[count].append(clock() - start)
        one = seconds[_ROWS[0]]
        times = {count: median(s / single for s, single in zip(seconds[count], one, strict=True)) for count in _ROWS}
        return [(count, min(one) * multiple) for count, multiple in times.items()]
    finally:
        target.blocks.release(table)


def time_keys(target: Target, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that a cached token of one more sequence adds to a pass; 0 where the cache has no room to tell.

    Passes of the same rows, all of one sequence or each of its own, differ in what they fetch from memory.
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
        passes = alone, together.build()
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in _rounds(clock):
            for rows, measured in zip(passes, seconds, strict=True):
                start = clock()
                target.forward(rows)
                measured.append(clock() - start)
        return max(0.0, (median(seconds[1]) - median(seconds[0])) / ((_SEQUENCES - 1) * length))
    finally:
        for table in tables:
            target.blocks.release(table)


def time_seen(target: Target, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that a cached token adds to each row that sees it; 0 where the context or the cache has no room to tell.

    A long history takes longer than a short one: the difference for eight rows, less that for one row, is their own.
    """
    long = min(_LONG, target.config.context_length, target.blocks.free * BLOCK) - _SEQUENCES
    if long < 2 * _LENGTH:
        return 0.0
    table: list[int] = []
    target.blocks.extend(table, long + _SEQUENCES)
    try:
        _touch(target, table)
        passes = {(rows, length): _chain(table, length, rows) for rows in (1, _SEQUENCES) for length in (_LENGTH, long)}
        best = dict.fromkeys(passes, float("inf"))
        for _ in _rounds(clock):
            for key, rows in passes.items():
                start = clock()
                target.forward(rows)
                best[key] = min(best[key], clock() - start)
    finally:
        target.blocks.release(table)
    more = {rows: best[rows, long] - best[rows, _LENGTH] for rows in (1, _SEQUENCES)}
    return max(0.0, (more[_SEQUENCES] - more[1]) / ((_SEQUENCES - 1) * (long - _LENGTH)))


def _rounds(clock: Callable[[], float]) -> Iterator[int]:
    """Twelve; fewer of a large model or on a busy machine, where every further one keeps the server from serving."""
    start = clock()
    for number in range(_ROUNDS):
        if number >= _FEWEST and clock() - start > _SECONDS:
            return
        yield number


def _touch(target: Target, table: list[int]) -> None:
    """Write to every page of a table's blocks. Pages that were never written to share one page of zeros, which is
    cached at once.
    """
    slots = [block * BLOCK + offset for block in table for offset in range(0, BLOCK, _PAGE)]
    target.move([table[0] * BLOCK] * len(slots), slots)


def _chain(table: list[int], length: int, count: int) -> Rows:
    rows = RowsBuilder()
    rows.add_tree(table, length, [0] * count, range(-1, count - 1))
    return rows.build()

"""How long passes take on this device: what the engine decides the width of drafts by."""

from __future__ import annotations

import time
from collections.abc import Callable

from services.generation.target.kernels import BLOCK
from services.generation.target.linear import padded_rows
from services.generation.target.rows import Rows, RowsBuilder
from services.generation.target.target import Target

_LENGTH = 3 * BLOCK  # tokens of context that the timed rows attend to
_ROWS = (1, 2, 4, 8, 16, 32)
_ROUNDS = 12
_COMPILED = 64  # passes of up to so many rows are made once first, because the first of a size compiles its kernels


def time_passes(target: Target, clock: Callable[[], float] = time.perf_counter) -> list[tuple[int, float]]:
    """(rows, seconds) of passes over chains of several widths: the fastest of some rounds, for noise only ever adds."""
    length = min(_LENGTH, target.config.context_length - _COMPILED)
    table: list[int] = []
    target.blocks.extend(table, length + _COMPILED)
    try:
        for count in sorted({padded_rows(count) for count in range(1, _COMPILED + 1)}):
            target.forward(_chain(table, length, count))
        passes = {count: _chain(table, length, count) for count in _ROWS}
        seconds: dict[int, list[float]] = {count: [] for count in _ROWS}
        for _ in range(_ROUNDS):
            for count, rows in passes.items():
                start = clock()
                target.forward(rows)
                seconds[count].append(clock() - start)
        return [(count, min(measured)) for count, measured in seconds.items()]
    finally:
        target.blocks.release(table)


def _chain(table: list[int], length: int, count: int) -> Rows:
    rows = RowsBuilder()
    rows.add_tree(table, length, [0] * count, range(-1, count - 1))
    return rows.build()

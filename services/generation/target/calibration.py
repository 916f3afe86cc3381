"""How long passes take on this device: what the engine decides the width of drafts by."""

from __future__ import annotations

import time
from collections.abc import Callable

from services.generation.target.kernels import BLOCK
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target

_LENGTH = 3 * BLOCK  # tokens of context that the timed rows attend to
_ROWS = (1, 2, 4, 8, 16, 32)
_REPEATS = 7


def time_passes(target: Target, clock: Callable[[], float] = time.perf_counter) -> list[tuple[int, float]]:
    """(rows, seconds) of passes over chains of several widths; the fastest of a few each, for noise only ever adds."""
    length = min(_LENGTH, target.config.context_length - max(_ROWS))
    table: list[int] = []
    target.blocks.extend(table, length + max(_ROWS))
    try:
        samples = []
        for count in _ROWS:
            rows = RowsBuilder()
            rows.add_tree(table, length, [0] * count, range(-1, count - 1))
            built = rows.build()
            target.forward(built)
            seconds = []
            for _ in range(_REPEATS):
                start = clock()
                target.forward(built)
                seconds.append(clock() - start)
            samples.append((count, min(seconds)))
        return samples
    finally:
        target.blocks.release(table)

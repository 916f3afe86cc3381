"""The time that a head's drafts take, measured once when a drafter is built."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TypeVar

from services.generation.engine.cost import StepCost
from services.generation.engine.drafter import Draft
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target

D = TypeVar("D", bound=Draft)

_SEQUENCES = (1, 8)  # that draft together; a line through both gives the cost of one more
_DEPTH = 4  # tokens of the deeper of two chains, whose difference is the time of a level
_ROUNDS = 6  # of which the median counts


def time_drafts(
    chains: Callable[[int, int], Sequence[D]],
    expand: Callable[[Sequence[D]], None],
    target: Target,
    deepest: int,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[StepCost, StepCost]:
    """Seconds of a draft at any depth, and of each of its levels, by sequences that draft together.

    `chains(sequences, depth)` begins chains that `expand` can draft. A pass of the target precedes each draft, as in
    use: it leaves little of the head in the processor's caches.
    """
    depth, table, rows = min(_DEPTH, deepest), list[int](), RowsBuilder()
    target.blocks.extend(table, 1)
    rows.add_chunk(table, 0, [0], True)
    one = rows.build()

    def seconds(count: int, levels: int) -> float:
        found = []
        for _ in range(_ROUNDS):
            drafts = chains(count, levels)
            target.forward(one)
            started = clock()
            expand(drafts)
            found.append(clock() - started)
            for draft in drafts:
                draft.release()
        return median(found)

    once, each = [], []
    try:
        for count in _SEQUENCES:
            shallow, deep = seconds(count, 1), seconds(count, depth)
            # a level that seemed to take no time would have no share in later measurements
            level = max((deep - shallow) / max(depth - 1, 1), 0.1 * shallow)
            once.append((count, max(shallow - level, 0.01 * shallow)))
            each.append((count, level))
    finally:
        target.blocks.release(table)
    return StepCost.fit(once), StepCost.fit(each)

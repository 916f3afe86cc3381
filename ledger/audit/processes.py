"""Work on a log divided among processes: like `map`, with results in the order of the jobs, few of them in memory."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import TypeVar

from ledger.errors import StoreError

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")

_ALONE = 4
"""Jobs that are done here before other processes are started, which takes longer than these jobs."""


class Processes:
    """Divides the work of one check. Jobs, results and the function travel by pickle, to new processes of Python."""

    def __init__(self, workers: int = 0) -> None:
        """`workers`: how many processes; 0: one for each core."""
        self._workers = workers or os.cpu_count() or 1

    def map(self, work: Callable[[_Job], _Result], jobs: Iterable[_Job]) -> Iterator[_Result]:
        """`map(work, jobs)`. Jobs are taken a few ahead of the results that were asked for. Raises what the work does,
        and StoreError where a process dies.
        """
        remaining, threshold = iter(jobs), gc.get_threshold()
        _collect_seldom()
        try:
            yield from map(work, islice(remaining, _ALONE))
            first = next(remaining, None)
            if first is not None:
                yield from self._in_processes(work, chain([first], remaining))
        finally:
            gc.set_threshold(*threshold)

    def _in_processes(self, work: Callable[[_Job], _Result], jobs: Iterable[_Job]) -> Iterator[_Result]:
        waiting: deque[Future[_Result]] = deque()
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self._workers, context, _collect_seldom) as pool:
            try:
                for job in jobs:
                    waiting.append(pool.submit(work, job))
                    if len(waiting) > 2 * self._workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            except BrokenProcessPool:
                raise StoreError("a process that checked entries was ended; nothing is known of them") from None


def _collect_seldom() -> None:
    """Documents have no cycles. Looking for some takes a tenth of the time here, and of them as they arrive from other
    processes, three quarters.
    """
    gc.set_threshold(50_000)

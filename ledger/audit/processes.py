"""Work on a log divided among processes: a `map` with few jobs in memory."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
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
"""The number of jobs done in this process first: starting other processes takes longer."""


class Processes:
    """Divides the work of one check. Jobs, results and the function are pickled for new processes of Python."""

    def __init__(self, workers: int = 0) -> None:
        """`workers` is the number of processes; 0: one for each core that this process may use."""
        self._workers = workers or (len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1)

    def map(self, work: Callable[[_Job], _Result], jobs: Iterable[_Job]) -> Iterator[_Result]:
        """`map(work, jobs)`, with a few jobs ahead of the requested results. Raises the errors of the work, and
        StoreError if a process dies.
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
                raise StoreError("a process that checked entries was killed, so their state is unknown") from None


def _collect_seldom() -> None:
    """Disable garbage collection: documents have no cycles, and the search takes a tenth of the time here, and three
    quarters when documents arrive from other processes.
    """
    gc.set_threshold(50_000)

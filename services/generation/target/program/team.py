"""This process's team of threads, which executes the programs of passes."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from services.generation.target.arrays import Int64, address
from services.generation.target.kernels import compilation
from services.generation.target.kernels.machine import this_machine
from services.generation.target.kernels.records import PASS
from services.generation.target.kernels.team_loop import POOL, float_mode
from services.generation.target.rows import Rows
from services.generation.target.states import Steps

_FIRST_BREAK, _LONGEST_BREAK = 0.02, 1.0  # seconds
_SLEPT = POOL.index("slept")
_TOO_MUCH_SLEEP, _SOME_SLEEP = 0.2, 0.04  # of a pass; the latter if one thread takes no longer than the team
_MOST_SLOWDOWN = 1.3  # of one thread relative to the team; slower passes are executed by the team even in a break
_NEWEST = 0.1  # weight of the newest pass
SLEEPS = sys.platform == "linux"  # members can wait for each other; elsewhere passes are executed by one thread
_PLACE = {name: number for number, name in enumerate(PASS)}
_ROWS = slice(_PLACE["rows"], _PLACE["branches"] + 1)  # counts, a stride, addresses of tokens and parts


class Team:
    """Threads of this process that compute passes together. Any thread may run a pass, one at a time.

    If another process takes the CPU of a member, the others wait for it at every barrier, and a team of two is slower
    than one thread. Therefore a team whose members slept takes a break, in which one thread executes passes; breaks
    become longer as long as the first pass after a break is no better. No bit depends on the number of threads.

    The acceptable share of sleep depends on the time of one thread. A pass over one row waits for memory, and one
    thread is about as fast; passes over many rows need all CPUs, and breaks are short.
    """

    def __init__(self, kernels: dict[str, int], clock: Callable[[], float] = time.monotonic) -> None:
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(kernels["run_team"])
        self._member = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(kernels["member"])
        self._set_float_mode = ctypes.CFUNCTYPE(None, ctypes.c_int64)(kernels["set_float_mode"])
        self._float_mode = float_mode(this_machine())
        self._clock = clock
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Reset to the calling thread alone: at the start, and in a child process, which inherits no threads."""
        self._pool = np.zeros((len(POOL), 8), np.int64)
        self._place = self._pool.ctypes.data
        self._busy = threading.Lock()
        self._threads = 1
        self._alone_until, self._break = 0.0, _FIRST_BREAK
        self._paces = defaultdict[tuple[int, int], _Pace](_Pace)  # by program and rows

    def run(self, words: Any, threads: int, *, wait: bool = False) -> None:
        """Execute the program of a pass (`records.PASS`) on up to `threads` threads.

        `wait`: on exactly `threads` threads, even if another pass is in progress or the CPUs are busy.
        """
        if threads == 1 or not SLEEPS:
            self._run(self._place, address(words), 1)
            return
        pace = self._paces[int(words[_PLACE["program"]]), int(words[_PLACE["rows"]])]
        start = self._clock()
        paused = not wait and start < self._alone_until and pace.alone <= _MOST_SLOWDOWN * (pace.together or pace.alone)
        if paused or not self._busy.acquire(blocking=wait):
            self._run(self._place, address(words), 1)
            pace.alone = _blended(pace.alone, self._clock() - start)
            return
        try:
            self._grow(threads)
            start = self._clock()
            self._run(self._place, address(words), threads)
            self._note(pace, self._clock() - start, threads)
        finally:
            self._busy.release()

    def keep_subnormals(self) -> None:
        """Set the calling thread to round to nearest and keep subnormals, as in passes: libraries may change it, and
        sampling and processors are arithmetic, too.
        """
        self._set_float_mode(self._float_mode)

    def _grow(self, threads: int) -> None:
        while self._threads < threads:
            arguments = self._place, self._threads
            threading.Thread(target=self._member, args=arguments, name="pass", daemon=True).start()
            self._threads += 1

    def _note(self, pace: _Pace, seconds: float, threads: int) -> None:
        """Record that the members executed a pass in `seconds`, and begin a break if they slept too much of it."""
        pace.together = _blended(pace.together, seconds)
        slept = 1e-9 * float(self._pool[_SLEPT, 0]) / (threads * seconds)
        self._pool[_SLEPT, 0] = 0
        if slept > (_SOME_SLEEP if 0.0 < pace.alone <= pace.together else _TOO_MUCH_SLEEP):
            self._alone_until = self._clock() + self._break
            self._break = min(2 * self._break, _LONGEST_BREAK)
        else:
            self._break = _FIRST_BREAK


@dataclass(slots=True)
class _Pace:
    """Recent seconds of passes with the same program and number of rows; 0 if unknown."""

    alone: float = 0.0  # by one thread
    together: float = 0.0  # by the team


def _blended(known: float, seconds: float) -> float:
    return known + _NEWEST * (seconds - known) if known else seconds


@cache
def team() -> Team:
    """This process's team."""
    return Team(compilation.kernels("rows"))


class Passes:
    """Executes one program at a time with this process's team. Used by one thread."""

    def __init__(self, threads: int) -> None:
        self._team, self._threads = team(), threads
        self._words = np.zeros(len(PASS), np.int64)

    def run(self, records: Int64, rows: Rows, steps: Steps | None = None) -> None:
        """Execute all operations of a program [operations, words]; `steps` are the folded steps."""
        begin, width = address(rows.numbers), rows.numbers.itemsize
        self._words[_ROWS] = (
            len(rows), len(rows.wanted), rows.tables.shape[1], address(rows.tokens),
            *[begin + width * start for start in rows.starts],
        )  # fmt: skip
        keeps_alive = steps and self._with(steps)
        self._run(records)
        del keeps_alive

    def fold(self, records: Int64, steps: Steps) -> None:
        """Execute operations that fold steps without rows."""
        keeps_alive = self._with(steps)
        self.run_plain(records, 0)
        del keeps_alive

    def _with(self, steps: Steps) -> Steps:
        """Set the addresses of contiguous copies of steps, which the caller keeps alive until the pass is done."""
        steps = Steps(*(np.ascontiguousarray(each) for each in (steps.taps, steps.rows, steps.sources, steps.targets)))
        for name in ("taps", "rows", "sources", "targets"):
            self._words[_PLACE[f"step_{name}"]] = address(getattr(steps, name))
        self._words[_PLACE["steps"]] = len(steps)
        return steps

    def run_plain(self, records: Int64, rows: int) -> None:
        """Execute operations that need only the number of rows."""
        self._words[_PLACE["rows"]] = rows
        self._run(records)

    def _run(self, records: Int64) -> None:
        self._words[_PLACE["program"]], self._words[_PLACE["operations"]] = address(records), len(records)
        self._team.run(self._words, self._threads)

"""The team of threads of this process, and the running of programs over the rows of passes by it."""

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
_TOO_MUCH_SLEEP, _SOME_SLEEP = 0.2, 0.04  # of a pass; the latter where one thread takes no longer than the team
_DEARER = 1.3  # times as long as the team: a pass that takes one thread longer is not run by it
_NEWEST = 0.1  # weight of the newest pass
_SLEEPS = sys.platform == "linux"  # whether members can wait for each other: elsewhere passes are run by one thread
_PLACE = {name: number for number, name in enumerate(PASS)}
_ROWS = slice(_PLACE["rows"], _PLACE["branches"] + 1)  # counts, a stride, addresses of tokens and parts


class Team:
    """Threads of this process that compute passes together. A pass may be run from any thread, one at a time.

    Where another process takes a CPU away from one member, the others wait for it at every barrier, and a team of two
    gets less done than one thread alone. A team that had to sleep therefore makes a break, in which passes are run by
    one thread, a longer one where the first pass after it goes no better; no bit depends on who runs a pass.

    How much sleep is too much depends on what one thread would take. A pass over one row waits for the memory, and one
    thread is about as fast; many rows want all CPUs, and break no team up for long.
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
        """No threads but the caller's: at the start, and in a child process, which inherits none."""
        self._pool = np.zeros((len(POOL), 8), np.int64)
        self._place = self._pool.ctypes.data
        self._busy = threading.Lock()
        self._threads = 1
        self._alone_until, self._break = 0.0, _FIRST_BREAK
        self._paces = defaultdict[tuple[int, int], _Pace](_Pace)  # by program and rows

    def run(self, words: Any, threads: int, *, wait: bool = False) -> None:
        """Run the program of a pass (`records.PASS`) on up to `threads` threads; returns when all of it is done.

        `wait`: on no fewer, even where another pass is under way or other processes want the CPUs.
        """
        if threads == 1 or not _SLEEPS:
            self._run(self._place, address(words), 1)
            return
        pace = self._paces[int(words[_PLACE["program"]]), int(words[_PLACE["rows"]])]
        start = self._clock()
        paused = not wait and start < self._alone_until and pace.alone <= _DEARER * (pace.together or pace.alone)
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
        """Sets the calling thread to round to nearest and keep subnormals, as passes do, whatever a library has
        told it: sampling and processors are arithmetic too.
        """
        self._set_float_mode(self._float_mode)

    def _grow(self, threads: int) -> None:
        while self._threads < threads:
            arguments = self._place, self._threads
            threading.Thread(target=self._member, args=arguments, name="pass", daemon=True).start()
            self._threads += 1

    def _note(self, pace: _Pace, seconds: float, threads: int) -> None:
        """The members have run a pass together in `seconds`, part of which they may have slept, waiting for
        another one.
        """
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
    """Seconds of passes with the same program and as many rows, of late: by one thread, and by all. 0 is unknown."""

    alone: float = 0.0
    together: float = 0.0


def _blended(known: float, seconds: float) -> float:
    return known + _NEWEST * (seconds - known) if known else seconds


@cache
def team() -> Team:
    """This process's team."""
    return Team(compilation.kernels("rows"))


class Passes:
    """Runs one program at a time, by this process's team. Used by one thread."""

    def __init__(self, threads: int) -> None:
        self._team, self._threads = team(), threads
        self._words = np.zeros(len(PASS), np.int64)

    def run(self, records: Int64, rows: Rows, steps: Steps | None = None) -> None:
        """Run all operations of a program [operations, words]; `steps` are what is folded."""
        begin, width = address(rows.numbers), rows.numbers.itemsize
        self._words[_ROWS] = (
            len(rows), len(rows.wanted), rows.tables.shape[1], address(rows.tokens),
            *[begin + width * start for start in rows.starts],
        )  # fmt: skip
        kept = steps and self._with(steps)
        self._run(records)
        del kept

    def fold(self, records: Int64, steps: Steps) -> None:
        """Run operations that fold steps none of which is a row."""
        kept = self._with(steps)
        self.run_plain(records, 0)
        del kept

    def _with(self, steps: Steps) -> Steps:
        """Point at steps, as they lie in memory one after another: they must be kept until the pass is done."""
        steps = Steps(*(np.ascontiguousarray(each) for each in (steps.taps, steps.rows, steps.sources, steps.targets)))
        for name in ("taps", "rows", "sources", "targets"):
            self._words[_PLACE[f"step_{name}"]] = address(getattr(steps, name))
        self._words[_PLACE["steps"]] = len(steps)
        return steps

    def run_plain(self, records: Int64, rows: int) -> None:
        """Run operations that ask for nothing about their rows but how many there are."""
        self._words[_PLACE["rows"]] = rows
        self._run(records)

    def _run(self, records: Int64) -> None:
        self._words[_PLACE["program"]], self._words[_PLACE["operations"]] = address(records), len(records)
        self._team.run(self._words, self._threads)

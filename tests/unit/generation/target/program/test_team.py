"""The breaks of a team of threads, with a fake clock and kernels that only take time."""

import ctypes
import sys

import numpy as np
import pytest

from services.generation.target.kernels.records import PASS
from services.generation.target.program.team import _SLEPT, Team

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no team")

TWO = 2


class Passes:
    """A team of two; one thread takes `alone` seconds for a pass, the two take `together`, `slept` of it asleep."""

    def __init__(self, alone: float, together: float, slept: float = 0.0) -> None:
        self.alone, self.together, self.slept, self.now = alone, together, slept, 0.0
        self.members: list[int] = []
        run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(self._run)
        nothing = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(lambda *_: None)
        self._kept = run, nothing
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in (run, nothing, nothing)]
        kernels = dict(zip(("run_team", "member", "set_float_mode"), map(int, filter(None, addresses)), strict=True))
        self.team = Team(kernels, lambda: self.now)

    def _run(self, pool: int, words: int, members: int) -> None:
        self.members.append(members)
        seconds = self.alone if members == 1 else self.together
        if members > 1:
            self.team._pool[_SLEPT, 0] = 1e9 * self.slept * members * seconds
        self.now += seconds

    def run(self, count: int, rows: int = 1) -> list[int]:
        """How many threads ran each of so many passes."""
        words = np.zeros(len(PASS), np.int64)
        words[PASS.index("rows")] = rows
        self.members.clear()
        for _ in range(count):
            self.team.run(words, TWO)
        return self.members[:]


def test_an_undisturbed_team_makes_no_break() -> None:
    assert Passes(alone=0.006, together=0.004).run(50) == [2] * 50


def test_a_team_that_slept_makes_ever_longer_breaks_and_short_ones_again_once_it_does_not() -> None:
    passes = Passes(alone=0.005, together=0.004, slept=0.3)
    threads = passes.run(400)
    breaks = [len(run) for run in "".join(map(str, threads)).split("2")[1:]]
    assert breaks[0] < breaks[1] < breaks[2] < breaks[3]
    passes.slept = 0.0
    passes.now += 2.0
    assert passes.run(50) == [2] * 50


@pytest.mark.parametrize(("alone", "together", "most"), [(0.0040, 0.0042, 20), (0.0060, 0.0042, 200)])
def test_a_little_sleep_is_too_much_where_one_thread_takes_no_longer(alone: float, together: float, most: int) -> None:
    passes = Passes(alone, together, slept=0.3)
    passes.run(10)
    passes.slept = 0.1
    passes.now += 2.0
    assert passes.run(200).count(2) <= most


def test_passes_that_want_both_cpus_are_run_by_both_also_in_a_break() -> None:
    passes = Passes(alone=0.02, together=0.01, slept=0.3)
    assert passes.run(100, rows=16).count(1) <= 10

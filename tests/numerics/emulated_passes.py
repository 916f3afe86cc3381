"""Whole passes of a target, run by QEMU on AArch64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.target.arrays import Int64
from services.generation.target.cpu import CpuTarget
from services.generation.target.kernels import compilation
from services.generation.target.program.team import Passes, Team
from services.generation.target.rows import Rows
from tests.numerics.emulator import Emulator
from tests.numerics.image import Image

_POOL = 512  # words, more than enough for what the members of a team share


class EmulatedPasses:
    """Takes the place of a target's `Passes`: all memory of the target goes through an image."""

    def __init__(self, target: CpuTarget, emulator: Emulator) -> None:
        self._target, self._emulator, self._passes = target, emulator, Passes(1)
        self._passes._team = _Noted()
        self._numbers = {
            compilation.kernels(module)[kernel]: number for number, (module, kernel) in enumerate(emulator.kernels)
        }

    def run(self, records: Int64, rows: Rows, between: object = ()) -> None:
        self._passes.run(records, rows)
        words = self._passes._words
        arrays = [*_arrays(self._target, set()), *_arrays(rows, set())]
        addresses = [array for array in arrays if array.dtype == np.int64]
        pool = np.zeros(_POOL, np.int64)
        image = Image(arrays, [records, words, pool, *addresses], self._numbers)
        run = self._emulator.kernels.index(("rows", "run_team"))
        self._emulator.execute(image, np.array([(run, image.place_of(pool), image.place_of(words), 1, 0)], np.int64))


class _Noted(Team):
    """Runs nothing: the words of the pass are all that is wanted."""

    def __init__(self) -> None:
        pass

    def run(self, words: Any, threads: int, *, wait: bool = False) -> None:
        pass


def _arrays(value: Any, seen: set[int]) -> Iterator[NDArray[Any]]:
    """All arrays that an object of ours leads to."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        yield value
    for member in _members(value):
        yield from _arrays(member, seen)


def _members(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    if not type(value).__module__.startswith("services."):
        return []
    slots = [getattr(value, name) for name in getattr(type(value), "__slots__", ()) if hasattr(value, name)]
    return [*slots, *getattr(value, "__dict__", {}).values()]

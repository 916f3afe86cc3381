"""An emulated AArch64: the image that it loads, calls into it, and passes of the model on it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.target.arrays import Bytes, Float32, Int64
from services.generation.target.cpu import CpuTarget
from services.generation.target.kernels import compilation
from services.generation.target.kernels.machine import Machine
from services.generation.target.kernels.records import PASS, record_of
from services.generation.target.program.buffers import ReusedMemory
from services.generation.target.program.team import Passes, Team
from services.generation.target.rows import Rows
from services.generation.target.states import Steps

_PAGE = 4096
_AFTER = 1 << 16  # zero bytes after each run of memory: kernels may prefetch


class Image:
    """A copy of arrays. `relocations` [n, 2]: a word's offset in it, and the offset to which the word points; -1 - i is
    kernel number i.
    """

    def __init__(
        self, arrays: Sequence[NDArray[Any]], pointing: Sequence[Int64], kernels: Mapping[int, int] | None = None
    ) -> None:
        """`pointing`: arrays whose words are addresses if they could be. `kernels`: numbers of kernels by their
        addresses in this process.

        Sizes and counts are far below any address, so that they are not mistaken for addresses.
        """
        self._kernels = kernels or {}
        self._runs = _runs([array for array in [*arrays, *pointing] if array.nbytes])
        self._starts = [start for start, _ in self._runs]
        self._places: list[int] = []
        size = 0
        for start, end in self._runs:
            place = size + start % _PAGE  # as aligned as here
            self._places.append(place)
            size = -(-(place + end - start + _AFTER) // _PAGE) * _PAGE
        self.memory = np.zeros(size, np.uint8)
        for place, (start, end) in zip(self._places, self._runs, strict=True):
            self.memory[place : place + end - start] = np.frombuffer(ctypes.string_at(start, end - start), np.uint8)
        self.relocations = np.array(
            [pair for words in pointing if words.size for pair in self._pairs(words)], np.int64
        ).reshape(-1, 2)

    def place_of(self, array: NDArray[Any]) -> int:
        place = self._place(array.ctypes.data)
        assert place is not None
        return place

    def give_back(self, memory: Bytes) -> None:
        """Put what another process made of the image into the arrays; addresses become this process's again."""
        assert len(memory) == len(self.memory)
        changed = memory.copy()
        for place, _ in self.relocations:
            changed[place : place + 8] = self.memory[place : place + 8]
        for place, (start, end) in zip(self._places, self._runs, strict=True):
            ctypes.memmove(start, changed[place : place + end - start].tobytes(), end - start)

    def _pairs(self, words: Int64) -> list[tuple[int, int]]:
        flat = words.reshape(-1)
        found = ((self._target(int(word)), 8 * number) for number, word in enumerate(flat))
        start = self.place_of(words)
        return [(start + offset, target) for target, offset in found if target is not None]

    def _target(self, word: int) -> int | None:
        return -1 - self._kernels[word] if word in self._kernels else self._place(word)

    def _place(self, address: int) -> int | None:
        number = bisect_right(self._starts, address) - 1
        if number < 0 or address >= self._runs[number][1]:
            return None
        return self._places[number] + address - self._starts[number]


def _runs(arrays: Sequence[NDArray[Any]]) -> list[tuple[int, int]]:
    """Ranges [start, end) of the arrays' memory, in order; arrays that share memory have one range."""
    runs: list[tuple[int, int]] = []
    for array in sorted(arrays, key=lambda array: array.ctypes.data):
        start, end = np.lib.array_utils.byte_bounds(array)
        if runs and start <= runs[-1][1]:
            runs[-1] = runs[-1][0], max(end, runs[-1][1])
        else:
            runs.append((start, end))
    return runs


_CC, _OBJCOPY, _QEMU = "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-objcopy", "qemu-aarch64"


def missing() -> str | None:
    """The tools that are not installed (Debian: qemu-user, gcc-aarch64-linux-gnu, libc6-dev-arm64-cross)."""
    absent = [tool for tool in (_CC, _OBJCOPY, _QEMU) if shutil.which(tool) is None]
    return ", ".join(absent) or None


@dataclass(frozen=True, slots=True)
class Emulator:
    """A program with the kernels of some modules, compiled into `folder`."""

    folder: Path
    kernels: tuple[tuple[str, str], ...]  # (module, kernel), by number

    @classmethod
    def build(cls, folder: Path, modules: Sequence[str], machine: Machine) -> Emulator:
        kernels = tuple((module, name) for module in modules for name in compilation.exports(module))
        objects = [_object(folder, module, machine) for module in modules]
        symbols = [_symbol(module, name) for module, name in kernels]
        table = "".join(f"extern kernel {symbol};\n" for symbol in symbols)
        table += f"kernel *const KERNELS[] = {{{', '.join(symbols)}}};\n"
        (folder / "table.c").write_text(f"typedef void kernel(void *, void *, long, long);\n{table}")
        sources = [str(Path(__file__).with_name("driver.c")), str(folder / "table.c")]
        command = [_CC, "-O1", "-static", "-o", str(folder / "driver"), *sources, *map(str, objects)]
        subprocess.run(command, check=True)
        return cls(folder, kernels)

    def run(self, calls: Sequence[Call]) -> None:
        """As `call.Run` has it: arrays of the calls hold afterwards what the kernels wrote there."""
        records, passes = [call.record(0) for call in calls], [call.words() for call in calls]
        arrays = [array for call in calls for array in call.arrays()]
        addresses = [array for array in arrays if array.dtype == np.int64]
        image = Image(arrays, [*records, *passes, *addresses])
        turns = [
            (self.kernels.index((call.module, call.kernel)), image.place_of(record), image.place_of(words), member,
             call.members)
            for call, record, words in zip(calls, records, passes, strict=True) for member in range(call.members)
        ]  # fmt: skip
        self.execute(image, np.array(turns, np.int64))

    def execute(self, image: Image, turns: np.ndarray) -> None:
        """`turns` [calls, 5]: number of the kernel, places of its record and pass, member and members."""
        sizes = np.array([len(image.relocations), len(turns), len(image.memory)], np.int64)
        source, result = self.folder / "image", self.folder / "result"
        with source.open("wb") as file:
            for part in (sizes, image.relocations, turns, image.memory):
                file.write(part.tobytes())
        subprocess.run([_QEMU, "-cpu", "max", str(self.folder / "driver"), str(source), str(result)], check=True)
        image.give_back(np.fromfile(result, np.uint8))


def _object(folder: Path, module: str, machine: Machine) -> Path:
    """The module's object file, its kernels renamed: all linear modules have kernels of the same names. The code is
    cached like this CPU's, under another name: tests make smaller modules.
    """
    path, kept = folder / f"{module}.o", compilation._object_path(machine, f"emulated_{module}")
    if (code := compilation._cached(kept)) is None:
        code = compilation.object_code(machine, module)
        compilation._write(kept, code)
    path.write_bytes(code)
    renames = [f"--redefine-sym={name}={_symbol(module, name)}" for name in compilation.exports(module)]
    subprocess.run([_OBJCOPY, *renames, str(path)], check=True)
    return path


def _symbol(module: str, kernel: str) -> str:
    return f"{module}_{kernel}"


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """Kernels write into the arrays that they are given."""

    module: str  # as `compilation.kernels` names it
    kernel: str
    operation: str  # whose fields (`records.FIELDS`) are in `values`, with arrays for their addresses
    values: Mapping[str, Any]
    passed: Mapping[str, Any]  # words of the pass (`records.PASS`)
    pointed: Sequence[NDArray[Any]] = ()  # arrays whose addresses are inside of others
    members: int = 1  # of the team, which take turns here

    def record(self, kernel: int) -> Int64:
        return record_of(self.operation, kernel, self.values)

    def words(self) -> Int64:
        words = np.zeros(len(PASS), np.int64)
        for name, value in self.passed.items():
            words[PASS.index(name)] = value.ctypes.data if isinstance(value, np.ndarray) else value
        return words

    def arrays(self) -> list[NDArray[Any]]:
        """All memory that the kernel may touch, but for record and pass."""
        found = [value for values in (self.values, self.passed) for value in values.values()]
        return [*(array for array in found if isinstance(array, np.ndarray)), *self.pointed]


Run = Callable[[Sequence[Call]], None]
"""Runs calls one after another."""


def run_here(calls: Sequence[Call]) -> None:
    """In this process, by the kernels for this CPU."""
    for call in calls:
        kernel = compilation.kernels(call.module)[call.kernel]
        record, words = call.record(kernel), call.words()
        for member in range(call.members):
            compilation.call(kernel, record.ctypes.data, words.ctypes.data, member, call.members)


_POOL = 512  # words, more than enough for a team's shared words


class EmulatedPasses:
    """Takes the place of a target's `Passes`: all memory of the target goes through an image."""

    def __init__(self, target: CpuTarget, emulator: Emulator) -> None:
        self._target, self._emulator, self._passes = target, emulator, Passes(1)
        self._passes._team = _Noted()
        target._logits = self._lent = _Lent()
        self._numbers = {
            compilation.kernels(module)[kernel]: number for number, (module, kernel) in enumerate(emulator.kernels)
        }

    def run(self, records: Int64, rows: Rows, steps: Steps | None = None) -> None:
        if steps is not None:
            steps = Steps(*(np.ascontiguousarray(getattr(steps, name)) for name in Steps.__slots__))
        self._passes.run(records, rows, steps)
        words = self._passes._words
        arrays = [*_arrays(self._target, set()), *_arrays(rows, set()), *_arrays(steps, set()), *self._lent.arrays]
        addresses = [array for array in arrays if array.dtype == np.int64]
        pool = np.zeros(_POOL, np.int64)
        image = Image(arrays, [records, words, pool, *addresses], self._numbers)
        run = self._emulator.kernels.index(("rows", "run_team"))
        self._emulator.execute(image, np.array([(run, image.place_of(pool), image.place_of(words), 1, 0)], np.int64))


class _Lent(ReusedMemory):
    """Lent memory belongs to who reads it; here it is part of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.arrays: list[Float32] = []

    def take(self, rows: int, size: int) -> Float32:
        self.arrays = [super().take(rows, size)]
        return self.arrays[0]


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
    # The words of this process's team belong to its threads: if they were restored, sleeping threads would be lost.
    if isinstance(value, Team) or not type(value).__module__.startswith("services."):
        return []
    slots = [getattr(value, name) for name in getattr(type(value), "__slots__", ()) if hasattr(value, name)]
    return [*slots, *getattr(value, "__dict__", {}).values()]

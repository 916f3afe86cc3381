"""Kernels for AArch64, run on another CPU by QEMU."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from services.generation.target.kernels import compilation
from services.generation.target.kernels.machine import Machine
from tests.numerics.call import Call
from tests.numerics.image import Image

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
    """The module's object file, its kernels renamed: all linear modules have kernels of the same names."""
    path = folder / f"{module}.o"
    path.write_bytes(compilation.object_code(machine, module))
    renames = [f"--redefine-sym={name}={_symbol(module, name)}" for name in compilation.exports(module)]
    subprocess.run([_OBJCOPY, *renames, str(path)], check=True)
    return path


def _symbol(module: str, kernel: str) -> str:
    return f"{module}_{kernel}"

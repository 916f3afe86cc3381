"""llama.cpp's programs, built for this CPU from the sources that llama-cpp-python carries, once, in `.cache`.

`python -m benchmarks.llama_cpp` builds them and prints their folder. Needs cmake and a C++ compiler.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

VERSION = "0.3.36"
"""Version of llama-cpp-python, whose sdist carries llama.cpp."""
PROGRAMS = ("llama-bench", "llama-server")
_FOLDER = Path(__file__).parents[1] / ".cache" / "llama.cpp" / VERSION
_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    # GCC 12 takes `_tile_loadconfig` to read 8 of its 64 bytes, drops the stores to the others, and AMX's tiles fault.
    "-DCMAKE_CXX_FLAGS=-fno-dse -fno-tree-dse",
)


def built() -> Path:
    """The folder of the programs. Raises SystemExit if a step of the build fails."""
    programs = _FOLDER / "build" / "bin"
    if not all((programs / name).exists() for name in PROGRAMS):
        source = _source()
        _run(["cmake", "-S", str(source), "-B", str(_FOLDER / "build"), *_FLAGS])
        _run(["cmake", "--build", str(_FOLDER / "build"), "--parallel", str(os.cpu_count()), "--target", *PROGRAMS])
    return programs


def _source() -> Path:
    """llama.cpp's sources, fetched by pip unless they are there."""
    source = _FOLDER / f"llama_cpp_python-{VERSION}" / "vendor" / "llama.cpp"
    if not source.exists():
        with tempfile.TemporaryDirectory() as folder:
            wanted = f"llama-cpp-python=={VERSION}"
            _run(
                [
                    sys.executable,
                    "-m",
                    "pip",
                    "download",
                    "--quiet",
                    "--no-deps",
                    "--no-binary=:all:",
                    "-d",
                    folder,
                    wanted,
                ]
            )
            (archive,) = Path(folder).glob("*.tar.gz")
            with tarfile.open(archive) as file:
                file.extractall(_FOLDER, filter="data")
    return source


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise SystemExit(f"{error.filename} is not installed; it is needed to build llama.cpp") from None
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:3])} failed: {(done.stderr or done.stdout)[-2000:]}")


if __name__ == "__main__":
    print(built())

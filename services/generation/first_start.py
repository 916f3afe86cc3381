"""Compilation by numba at a machine's first start: by processes of their own, beside the loading of the model.

    python -m services.generation.first_start text sampling        (is such a process)

Sampling takes 20 seconds of one CPU, trees 12, most of a first start's time; torch, and so the model, is not needed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from services.generation.target.canonical.kernels.cache_folder import cache_folder
from services.generation.target.one_at_a_time import one_at_a_time
from services.runtime.logs import LogFormat, configure_logging

Part = Literal["sampling", "trees"]
PARTS: tuple[Part, ...] = ("sampling", "trees")
"""Code that every server needs, and code that it needs where a model drafts."""

_HERE = Path(__file__).parent
_COMPILED = ("compiled_code.py", "engine/sampling/*.py", "drafting/**/*.py", "target/blocks.py")


def compile_beside(part: Part, log_format: str) -> subprocess.Popen[bytes] | None:
    """Such a process, unless an earlier start of this version has left the mark of having compiled the part.

    It logs to this process's stderr and ends with it. A caller that needs the code waits in `compiling`, and
    compiles what is still missing.
    """
    if _mark(part).exists() or not _is_writable(cache_folder()):
        return None
    command = [sys.executable, "-m", __name__, log_format, part]
    process = subprocess.Popen(command, cwd=_HERE.parents[1], stdin=subprocess.PIPE)
    threading.Thread(target=process.wait, daemon=True).start()  # else its entry stays in the table of processes
    return process


def compiling(part: Part) -> AbstractContextManager[None]:
    """In this block no other process of this machine compiles this part."""
    return one_at_a_time(cache_folder() / part)


def leave_mark(part: Part) -> None:
    """All of it is compiled."""
    if _is_writable(cache_folder()):
        _mark(part).touch()


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _mark(part: Part) -> Path:
    sources = sorted(path for pattern in _COMPILED for path in _HERE.glob(pattern))
    read = b"".join(source.read_bytes() for source in sources) + version("numba").encode()
    return cache_folder() / f"{part}-{hashlib.sha256(read).hexdigest()[:16]}"


def main(log_format: LogFormat, part: Part) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with compiling(part):
        if _mark(part).exists():
            return
        from services.generation.compiled_code import compile_part
        from services.generation.engine.compile_log import compile_log

        configure_logging("info", log_format, "generation")
        with compile_log():
            compile_part(part)
        leave_mark(part)


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    main("json" if sys.argv[1] == "json" else "text", "trees" if sys.argv[2] == "trees" else "sampling")

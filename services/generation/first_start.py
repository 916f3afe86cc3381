"""What numba compiles at a machine's first start: by a process of its own, beside the loading of the model.

    python -m services.generation.first_start        (is that process)

It takes 20 seconds of one CPU, most of a first start's time; torch, and so the model, is not needed for it.
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

from services.generation.target.canonical.kernels.cache_folder import cache_folder
from services.generation.target.one_at_a_time import one_at_a_time
from services.runtime.logs import LogFormat, configure_logging

_HERE = Path(__file__).parent
_COMPILED = ("compiled_code.py", "engine/sampling/*.py", "drafting/**/*.py", "target/blocks.py")


def compile_beside(log_format: str) -> subprocess.Popen[bytes] | None:
    """That process, unless an earlier start of this version has left the mark of having compiled everything.

    It logs to this process's stderr and ends with it. A caller that needs the code waits in `compiling`, and
    compiles what is still missing.
    """
    if _mark().exists() or not _is_writable(cache_folder()):
        return None
    return subprocess.Popen([sys.executable, "-m", __name__, log_format], cwd=_HERE.parents[1], stdin=subprocess.PIPE)


def compiling() -> AbstractContextManager[None]:
    """In this block no other process of this machine compiles for numba."""
    return one_at_a_time(cache_folder() / "numba")


def leave_mark() -> None:
    """Everything is compiled."""
    if _is_writable(cache_folder()):
        _mark().touch()


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _mark() -> Path:
    sources = sorted(path for pattern in _COMPILED for path in _HERE.glob(pattern))
    read = b"".join(source.read_bytes() for source in sources) + version("numba").encode()
    return cache_folder() / f"numba-{hashlib.sha256(read).hexdigest()[:16]}"


def main(log_format: LogFormat) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with compiling():
        if _mark().exists():
            return
        from services.generation.compiled_code import compile_sampling_and_drafting
        from services.generation.engine.compile_log import compile_log

        configure_logging("info", log_format, "generation")
        with compile_log():
            compile_sampling_and_drafting()
        leave_mark()


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    main("json" if sys.argv[1:] == ["json"] else "text")

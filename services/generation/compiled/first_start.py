"""Compilation by numba at a machine's first start: by processes of their own, beside the loading of the model.

    python -m services.generation.compiled.first_start text sampling        (is such a process)

Sampling takes 20 seconds of one CPU, trees 12, most of a first start's time; torch, and so the model, is not needed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from services.generation.compiled.compiled_parts import Part, can_be_kept, compiling, is_compiled, leave_mark
from services.runtime.logs import LogFormat, configure_logging


def compile_beside(part: Part, log_format: str) -> subprocess.Popen[bytes] | None:
    """Such a process, unless an earlier start of this version has left the mark of having compiled the part.

    It logs to this process's stderr and ends with it. A caller that needs the code waits in `compiling`, and
    compiles what is still missing.
    """
    if is_compiled(part) or not can_be_kept():
        return None
    command = [sys.executable, "-m", __name__, log_format, part]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[3], stdin=subprocess.PIPE)
    threading.Thread(target=process.wait, daemon=True).start()  # else its entry stays in the table of processes
    return process


def main(log_format: LogFormat, part: Part) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with compiling(part):
        if is_compiled(part):
            return
        from services.generation.compiled.compiled_code import compile_part
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

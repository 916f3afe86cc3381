"""The machine that measures, the memory of its processes, and the files that results go to."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Processor and cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.split(":")[1].strip() for line in lines if "model name" in line)
    return {"processor": next(named, platform.processor()), "cores": os.cpu_count()}


def resident(process: int | str = "self", field: str = "VmRSS") -> int:
    """Resident bytes of a process (Linux); 0 for one that has died.

    `VmHWM`: the peak since it runs its program, where getrusage would count what its parent had when it forked.
    `RssAnon`: its own pages alone, for those of mapped files can be dropped.
    """
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), 0)

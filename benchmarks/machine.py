"""The machine that measures, and the files that results go to."""

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

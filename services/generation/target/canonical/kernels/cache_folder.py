"""Where machine code is kept."""

from __future__ import annotations

import os
from pathlib import Path

CACHE = "KOLM_KERNEL_CACHE"
"""Environment variable: the folder of compiled kernels."""

_HERE = Path(__file__).parent


def cache_folder() -> Path:
    """KOLM_KERNEL_CACHE where it is set, else beside the modules, else the user's cache."""
    configured = os.environ.get(CACHE)
    if configured:
        return Path(configured)
    beside = _HERE / "__pycache__"
    if os.access(beside if beside.exists() else _HERE, os.W_OK):
        return beside / "kernels"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kolm" / "kernels"

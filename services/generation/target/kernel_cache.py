"""Where compiled kernels are kept: in a folder named by what they were compiled from.

numba compiles a function again when its own file has changed, but not when a function that it calls, from another file,
has: after an update, half of the kernels would go on with the old arithmetic. A change of any file with kernels
therefore begins a new folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from numba import config

_PACKAGE = Path(__file__).parent
_SOURCES = ("kernels.py", "vectors.py", "attention.py", "team.py", "team_attention.py", "adapters/low_rank.py")
_DIGITS = 16


@contextmanager
def kernel_cache() -> Iterator[None]:
    """What is decorated inside keeps its machine code in this version's folder."""
    before = config.CACHE_DIR  # type: ignore[attr-defined]
    config.CACHE_DIR = str(_root(before) / f"kernels-{_version()}")  # type: ignore[attr-defined]
    try:
        yield
    finally:
        config.CACHE_DIR = before  # type: ignore[attr-defined]


def kernels_are_compiled() -> bool:
    """Whether an earlier start has left this version's kernels; without them a start takes most of a minute longer.

    Asked about is that of attention: some others are compiled when their module is imported, at any start.
    """
    folder = _root(config.CACHE_DIR) / f"kernels-{_version()}"  # type: ignore[attr-defined]
    return any(folder.rglob("attention.attend-*.nbi"))


def _root(configured: str) -> Path:
    """NUMBA_CACHE_DIR where it is set, else beside the modules, else the user's cache."""
    if configured:
        return Path(configured)
    beside = _PACKAGE / "__pycache__"
    if os.access(beside if beside.exists() else _PACKAGE, os.W_OK):
        return beside
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kolm"


@cache
def _version() -> str:
    digest = hashlib.sha256(b"".join((_PACKAGE / source).read_bytes() for source in _SOURCES))
    return digest.hexdigest()[:_DIGITS]

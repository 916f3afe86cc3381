"""How the engine's own numerics are compiled."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import config, njit

Function = TypeVar("Function", bound=Callable[..., Any])

_PACKAGE = Path(__file__).parent
_SOURCES = ("compiled.py", "elementary.py", "mask.py", "philox.py", "race.py", "row.py", "selection.py")
"""Files of this package with compiled functions."""


def compiled(function: Function) -> Function:
    """Compile for this machine, without the GIL, machine code kept on disk.

    No flag lets LLVM fuse, reorder or approximate an operation on floats: the bits follow from IEEE 754 alone.
    """
    return _compiled(function, forceinline=False)


def inlined(function: Function) -> Function:
    """As `compiled`, and part of whatever calls it: a loop over a call could not run in vector registers."""
    return _compiled(function, forceinline=True)


def _compiled(function: Function, forceinline: bool) -> Function:
    before = config.CACHE_DIR  # type: ignore[attr-defined]
    config.CACHE_DIR = str(_folder(before))  # type: ignore[attr-defined]
    try:
        compile = njit(nogil=True, cache=True, fastmath=False, error_model="numpy", forceinline=forceinline)
        return cast(Function, compile(function))
    finally:
        config.CACHE_DIR = before  # type: ignore[attr-defined]


@cache
def _folder(configured: str) -> Path:
    """A folder named by all sources: numba looks for changes in a function's own file, not in those that it calls."""
    version = hashlib.sha256(b"".join((_PACKAGE / source).read_bytes() for source in _SOURCES)).hexdigest()[:16]
    return _root(configured) / f"sampling-{version}"


def _root(configured: str) -> Path:
    """NUMBA_CACHE_DIR where it is set, else beside the modules, else the user's cache."""
    if configured:
        return Path(configured)
    beside = _PACKAGE / "__pycache__"
    if os.access(beside if beside.exists() else _PACKAGE, os.W_OK):
        return beside
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kolm"

"""How the engine's own numerics are compiled."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import config, njit

from services.generation.target.canonical.kernels.cache_folder import cache_folder

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
    config.CACHE_DIR = str(cache_folder() / f"sampling-{_version()}")  # type: ignore[attr-defined]
    try:
        compile = njit(nogil=True, cache=True, fastmath=False, error_model="numpy", forceinline=forceinline)
        return cast(Function, compile(function))
    finally:
        config.CACHE_DIR = before  # type: ignore[attr-defined]


@cache
def _version() -> str:
    """Of all sources: numba looks for changes in a function's own file, not in those that it calls."""
    return hashlib.sha256(b"".join((_PACKAGE / source).read_bytes() for source in _SOURCES)).hexdigest()[:16]

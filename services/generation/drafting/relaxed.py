"""How numba compiles functions that draft: they only propose, so LLVM may fuse and reorder their additions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import config, njit

from services.generation.target.canonical.kernels.cache_folder import cache_folder

Function = TypeVar("Function", bound=Callable[..., Any])

_FREE = {"contract", "reassoc", "nsz", "arcp"}
_HERE = Path(__file__).parent
_ELSEWHERE = ("compiled.py", "elementary.py", "philox.py", "row.py", "../../target/blocks.py")  # than in this package


def relaxed(function: Function) -> Function:
    """Compile for this machine, without the GIL, NaN and infinities kept; machine code stays on disk.

    numba compiles a function anew when its own file has changed, but not when one that it calls from another file has:
    the folder is named by all files of drafting and those that they call.
    """
    before = config.CACHE_DIR  # type: ignore[attr-defined]
    config.CACHE_DIR = str(cache_folder() / f"drafting-{_version()}")  # type: ignore[attr-defined]
    try:
        return cast(Function, njit(nogil=True, cache=True, fastmath=_FREE, error_model="numpy")(function))
    finally:
        config.CACHE_DIR = before  # type: ignore[attr-defined]


@cache
def _version() -> str:
    sources = sorted(_HERE.rglob("*.py")) + [_HERE.parent / "engine" / "sampling" / source for source in _ELSEWHERE]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]

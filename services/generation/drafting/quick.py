"""How what drafts is compiled by numba: it only proposes, so LLVM may fuse and reorder its additions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import config, njit

from services.generation.target.canonical.compilation import cache_folder

Function = TypeVar("Function", bound=Callable[..., Any])

_FREE = {"contract", "reassoc", "nsz", "arcp"}
_HERE = Path(__file__).parent
_SOURCES = (
    "quick.py", "history.py", "eagle3/children.py", "eagle3/confidence.py", "eagle3/copying.py", "eagle3/growing.py",
    "eagle3/rounds.py", "eagle3/scan.py", "../engine/compiled.py", "../engine/elementary.py", "../engine/philox.py",
    "../engine/row.py", "../target/blocks.py",
)  # fmt: skip
"""Files whose compiled functions call each other."""


def quick(function: Function) -> Function:
    """Compile for this machine, without the GIL, NaN and infinities kept; machine code stays on disk.

    numba compiles a function anew when its own file has changed, but not when one that it calls from another file has:
    the folder is named by all of them.
    """
    before = config.CACHE_DIR  # type: ignore[attr-defined]
    config.CACHE_DIR = str(cache_folder() / f"drafting-{_version()}")  # type: ignore[attr-defined]
    try:
        return cast(Function, njit(nogil=True, cache=True, fastmath=_FREE, error_model="numpy")(function))
    finally:
        config.CACHE_DIR = before  # type: ignore[attr-defined]


@cache
def _version() -> str:
    return hashlib.sha256(b"".join((_HERE / source).read_bytes() for source in _SOURCES)).hexdigest()[:16]

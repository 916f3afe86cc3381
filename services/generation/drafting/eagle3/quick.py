"""How the head's own kernels are compiled: nothing here has to be exact, so they may fuse and reorder additions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit

from services.generation.target.kernel_cache import kernel_cache, version_of
from services.generation.target.kernels import callback

Function = TypeVar("Function", bound=Callable[..., Any])

_FREE = {"contract", "reassoc", "nsz", "arcp"}
_PACKAGE = Path(__file__).parent
_SOURCES = (
    "kernels.py", "rounds.py", "growing.py", "confidence.py", "copying.py", "panels.py", "products.py", "quick.py",
    "scan.py", "../history.py", "../../engine/compiled.py", "../../engine/elementary.py", "../../engine/philox.py",
)  # fmt: skip


def quick(function: Function) -> Function:
    """Compile with the freedom to fuse and reorder, NaN and infinities kept; cached like a kernel, in a folder of this
    version of what calls each other here.
    """
    with kernel_cache(_folder()):
        return cast(Function, njit(nogil=True, cache=True, fastmath=_FREE, error_model="numpy")(function))


def quick_callback(signature: Any) -> Callable[[Function], Any]:
    """As `kernels.callback`, for what calls quick functions."""
    return callback(signature, below=_folder())


def _folder() -> str:
    return f"head-{version_of(_PACKAGE, _SOURCES)}"

"""How the head's own kernels are compiled: nothing here has to be exact, so they may fuse and reorder additions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])

_FREE = {"contract", "reassoc", "nsz", "arcp"}


def quick(function: Function) -> Function:
    """Compile with the freedom to fuse and reorder, NaN and infinities kept; cached like a kernel."""
    return cast(Function, njit(nogil=True, cache=True, fastmath=_FREE, error_model="numpy")(function))

"""How the head's own kernels are compiled: nothing here has to be exact, so they may fuse and reorder additions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import config, njit

from services.generation.target.kernel_cache import kernel_cache

Function = TypeVar("Function", bound=Callable[..., Any])

_FREE = {"contract", "reassoc", "nsz", "arcp"}
_PACKAGE = Path(__file__).parent
_SOURCES = (
    "kernels.py", "rounds.py", "growing.py", "confidence.py", "copying.py", "products.py", "quick.py",
    "../history.py", "../../engine/philox.py",
)  # fmt: skip
_DIGITS = 16


def quick(function: Function) -> Function:
    """Compile with the freedom to fuse and reorder, NaN and infinities kept; cached like a kernel, in a folder of this
    version of what calls each other here.
    """
    with _own_cache():
        return cast(Function, njit(nogil=True, cache=True, fastmath=_FREE, error_model="numpy")(function))


@contextmanager
def _own_cache() -> Iterator[None]:
    with kernel_cache():  # which puts back what was set before
        config.CACHE_DIR = str(Path(config.CACHE_DIR) / f"head-{_version()}")  # type: ignore[attr-defined]
        yield


@cache
def _version() -> str:
    digest = hashlib.sha256(b"".join((_PACKAGE / source).read_bytes() for source in _SOURCES))
    return digest.hexdigest()[:_DIGITS]

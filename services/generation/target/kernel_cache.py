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
_SOURCES = (
    "kernels.py",
    "llvm.py",
    "vectors.py",
    "attention.py",
    "team.py",
    "team_attention.py",
)
"""Files of this package with kernels of the pass."""
_DIGITS = 16


@contextmanager
def kernel_cache(below: str = "") -> Iterator[None]:
    """What is decorated inside keeps its machine code in this version's folder, or in the folder `below` it."""
    before = config.CACHE_DIR  # type: ignore[attr-defined]
    config.CACHE_DIR = str(_folder() / below)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        config.CACHE_DIR = before  # type: ignore[attr-defined]


def kernels_are_compiled() -> bool:
    """Whether an earlier start has left this version's kernels; without them a start takes most of a minute longer.

    Asked about is that of attention: some others are compiled when their module is imported, at any start.
    """
    return any(_folder().rglob("attention.attend-*.nbi"))


@cache
def version_of(package: Path, sources: tuple[str, ...]) -> str:
    """A few digits of the digest of `sources`, paths from `package`."""
    digest = hashlib.sha256(b"".join((package / source).read_bytes() for source in sources))
    return digest.hexdigest()[:_DIGITS]


def _folder() -> Path:
    return _root(config.CACHE_DIR) / f"kernels-{version_of(_PACKAGE, _SOURCES)}"  # type: ignore[attr-defined]


def _root(configured: str) -> Path:
    """NUMBA_CACHE_DIR where it is set, else beside the modules, else the user's cache."""
    if configured:
        return Path(configured)
    beside = _PACKAGE / "__pycache__"
    if os.access(beside if beside.exists() else _PACKAGE, os.W_OK):
        return beside
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kolm"

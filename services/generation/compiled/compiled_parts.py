"""The parts of the code that numba compiles, and their marks in the folder of compiled code."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from services.generation.target.canonical.kernels.cache_folder import cache_folder, is_writable
from services.generation.target.one_at_a_time import one_at_a_time

Part = Literal["sampling", "trees"]
PARTS: tuple[Part, ...] = ("sampling", "trees")
"""Code that every server needs, and code that it needs where a model drafts."""

_GENERATION = Path(__file__).parents[1]
_COMPILED = ("compiled/compiled_code.py", "engine/sampling/*.py", "drafting/**/*.py", "target/blocks.py")


def is_compiled(part: Part) -> bool:
    """Whether a process of this version has left the mark of having compiled the part."""
    return _mark(part).exists()


def compiling(part: Part) -> AbstractContextManager[None]:
    """In this block no other process of this machine compiles this part."""
    return one_at_a_time(cache_folder() / part)


def leave_mark(part: Part) -> None:
    """All of it is compiled."""
    if can_be_kept():
        _mark(part).touch()


def can_be_kept() -> bool:
    """Whether compiled code outlives this process."""
    return is_writable(cache_folder())


def _mark(part: Part) -> Path:
    sources = sorted(path for pattern in _COMPILED for path in _GENERATION.glob(pattern))
    read = b"".join(source.read_bytes() for source in sources) + version("numba").encode()
    return cache_folder() / f"{part}-{hashlib.sha256(read).hexdigest()[:16]}"

"""Functions that numba compiles at their first call, and the cache of their machine code.

numba takes four seconds of one CPU for sampling, four for copies of earlier text and six for draft trees. So machine
code is cached on disk, in a folder named by a digest of all sources: numba itself notices changes only in a function's
own file, and not in the functions that it calls.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from services.generation.state_folder import one_at_a_time
from services.generation.target.kernels.compilation import cache_folder, make_writable

_log = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])

Part = Literal["greedy", "sampling", "copies", "trees"]
PARTS: tuple[Part, ...] = ("greedy", "sampling", "copies", "trees")
"""Code of every server, to choose the likeliest token, to sample and to draft from earlier text; code of models that
draft.
"""

_GENERATION = Path(__file__).parents[1]
_SAMPLING = ("engine/numba_cache.py", "engine/sampling/*.py")
_DRAFTING = (*_SAMPLING, "drafting/**/*.py", "engine/cost.py", "engine/economics.py", "target/blocks.py")
_declared: list[Callable[..., Any]] = []  # functions of the modules that this process has imported
_FREE = {"contract", "reassoc", "nsz", "arcp"}
_LOG_SECONDS = 2.0  # between two log lines
_OPTIONS: Any = {"nogil": True, "cache": True, "error_model": "numpy", "no_cfunc_wrapper": True}  # C calls none


def compiled(function: Function) -> Function:
    """Compile for this machine, without the GIL.

    No flag lets LLVM fuse, reorder or approximate an operation on floats: the bits follow from IEEE 754 alone.
    """
    return _kept(function, "sampling", _SAMPLING, fastmath=False)


def inlined(function: Function) -> Function:
    """`compiled`, and inlined into its callers: a loop over a call could not run in vector registers."""
    return _kept(function, "sampling", _SAMPLING, fastmath=False, forceinline=True)


def relaxed(function: Function) -> Function:
    """A function compiled for drafting, which only proposes: LLVM may fuse and reorder its additions.

    NaN and infinities are kept.
    """
    return _kept(function, "drafting", _DRAFTING, fastmath=_FREE)


def _kept(function: Function, name: str, sources: tuple[str, ...], **options: Any) -> Function:
    from numba import config, njit  # takes half a second, which a process that only reads marks does not need

    _declared.append(function)
    before = config.CACHE_DIR  # type: ignore[attr-defined]
    config.CACHE_DIR = str(cache_folder() / f"{name}-{_version(sources)}")  # type: ignore[attr-defined]
    try:
        return cast(Function, njit(**_OPTIONS, **options)(function))
    finally:
        config.CACHE_DIR = before  # type: ignore[attr-defined]


@cache
def _version(sources: tuple[str, ...]) -> str:
    paths = sorted(path for pattern in sources for path in _GENERATION.glob(pattern))
    read = b"".join(path.read_bytes() for path in paths) + version("numba").encode()
    return hashlib.sha256(read).hexdigest()[:16]


def is_compiled(part: Part) -> bool:
    """Whether a process of this version has marked the part as compiled."""
    return _mark(part).exists()


def compiling(part: Part) -> AbstractContextManager[None]:
    """A block in which no other process of this machine compiles this part."""
    return one_at_a_time(cache_folder() / part)


def leave_mark(part: Part) -> None:
    """Mark the part as compiled."""
    if can_be_kept():
        _mark(part).touch()


def can_be_kept() -> bool:
    """Whether compiled code is kept on disk."""
    return make_writable(cache_folder())


def _mark(part: Part) -> Path:
    return cache_folder() / f"{part}-{_version((*_DRAFTING, 'warm_up.py'))}"


@contextmanager
def compile_log(part: str, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Log the functions that are compiled inside, and not found on disk, as counts; `part` names them. The total counts
    all declared functions, some of which may not be needed.
    """
    from numba.core import event

    done, last_logged = set[Any](), -_LOG_SECONDS

    def started(started: Any) -> None:
        nonlocal last_logged
        function = getattr(started.data["dispatcher"], "py_func", None)
        if function not in _declared:  # numba's own, called by a declared function
            return
        done.add(function)
        if clock() - last_logged >= _LOG_SECONDS:
            last_logged = clock()
            _log.info("compiling kernels for %s, once for this version: %d of %d", part, len(done), len(_declared))

    class Counting(event.Listener):
        def on_start(self, event: Any) -> None:
            started(event)

        def on_end(self, event: Any) -> None:
            pass

    with event.install_listener("numba:compile", Counting()):
        yield

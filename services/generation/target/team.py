"""torch's own OpenMP threads, for kernels: the team that runs the linear layers runs the rows between them too.

A second pool of threads would fight with torch's for the same cores, because OpenMP's threads spin for a while after
each parallel region; the team is awake already and starts on a kernel within a microsecond or two.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import torch
from numba import types

_LIBRARY = Path(torch.__file__).parent / "lib" / "libgomp.so.1"

run_on_team: Any = types.ExternalFunction(
    "GOMP_parallel", types.void(types.uintp, types.uintp, types.uint32, types.uint32)
)  # (function, its argument, threads, 0): GNU libgomp's entry for `#pragma omp parallel`
member: Any = types.ExternalFunction("omp_get_thread_num", types.int32())
members: Any = types.ExternalFunction("omp_get_num_threads", types.int32())
"""Threads in the running team: fewer than were asked for where OMP_THREAD_LIMIT or OMP_DYNAMIC says so."""


def _loaded() -> bool:
    """Whether torch runs on GNU OpenMP, so that kernels can name its functions."""
    if not _LIBRARY.exists():
        return False
    library = ctypes.CDLL(str(_LIBRARY))
    for function in (run_on_team, member, members):
        llvm.add_symbol(function.symbol, ctypes.cast(getattr(library, function.symbol), ctypes.c_void_p).value)
    return True


_AVAILABLE = _loaded()


def team_size() -> int:
    """Threads that a kernel may use: torch's number, or 1 where torch does not run on GNU OpenMP."""
    return torch.get_num_threads() if _AVAILABLE else 1

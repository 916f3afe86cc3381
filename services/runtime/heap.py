"""How the C library gives memory back (glibc; elsewhere nothing happens)."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_ARENA_MAX, _MMAP_THRESHOLD = -8, -3  # <malloc.h>
_THRESHOLD = 128 * 1024


def return_large_blocks() -> None:
    """From here on large blocks go back to the system as soon as they are free.

    By itself glibc raises the size from which that is so to 32 MiB, and keeps an arena for each of gRPC's threads:
    after a burst of large requests the process would stay as large as the burst.
    """
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _THRESHOLD)
        library.mallopt(_ARENA_MAX, 2)

"""Says what numba compiles while a service starts: a minute on a slow machine, once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event

_log = logging.getLogger(__name__)
_SECONDS = 2.0  # between two lines


class _Counting(event.Listener):
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said = -_SECONDS
        self._count = 0

    def on_start(self, event: Any) -> None:
        self._count += 1
        if self._clock() - self._said >= _SECONDS:
            self._said = self._clock()
            name = getattr(event.data["dispatcher"], "py_func", None)
            _log.info("compiling what samples and drafts: function %d, %s", self._count, getattr(name, "__name__", "?"))

    def on_end(self, event: Any) -> None:
        pass


@contextmanager
def compile_log(clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """In this block functions that are compiled, and not found on disk, are counted in the log."""
    with event.install_listener("numba:compile", _Counting(clock)):
        yield

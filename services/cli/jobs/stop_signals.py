"""SIGINT and SIGTERM for a program that has to end in order."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def stop_signals(
    on_signal: Callable[[int], None], numbers: Sequence[int] = (signal.SIGINT, signal.SIGTERM)
) -> Iterator[None]:
    """Calls `on_signal` with the number of each that comes during the block. Only on the main thread."""
    before = {number: signal.signal(number, lambda came, frame: on_signal(came)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

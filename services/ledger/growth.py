"""A signal to everybody who waits for the log to grow."""

from __future__ import annotations

import asyncio


class Growth:
    """Many tasks wait, one call wakes them all. On one event loop.

    Take `next()` before looking at the log and wait for it after: growth in between is then never missed.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Set at the first growth from now on."""
        return self._event

    def announce(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()

"""How much of one stream may be in work at once."""

from __future__ import annotations

import asyncio


class Window:
    """Room for so many entries and so many bytes; a request larger than that gets in alone. On one event loop."""

    def __init__(self, entries: int, size: int) -> None:
        self._most_entries = entries
        self._most_bytes = size
        self._entries = 0
        self._bytes = 0
        self._left = asyncio.Event()

    async def enter(self, entries: int, size: int) -> None:
        """Returns once there is room for a request of so many entries and bytes."""
        while self._entries and not self._fits(entries, size):
            self._left.clear()
            await self._left.wait()
        self._entries += entries
        self._bytes += size

    def leave(self, entries: int, size: int) -> None:
        """A request has been answered."""
        self._entries -= entries
        self._bytes -= size
        self._left.set()

    def _fits(self, entries: int, size: int) -> bool:
        return self._entries + entries <= self._most_entries and self._bytes + size <= self._most_bytes

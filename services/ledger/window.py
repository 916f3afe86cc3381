"""How much of one stream may be in work at once."""

from __future__ import annotations

import asyncio


class Window:
    """Room for so many requests and so many bytes; a request larger than that gets in alone. On one event loop."""

    def __init__(self, requests: int, size: int) -> None:
        self._requests = requests
        self._size = size
        self._inside: int = 0
        self._bytes: int = 0
        self._left = asyncio.Event()

    async def enter(self, size: int) -> None:
        """Returns once there is room for another request, of `size` bytes."""
        while self._inside and (self._inside >= self._requests or self._bytes + size > self._size):
            self._left.clear()
            await self._left.wait()
        self._inside += 1
        self._bytes += size

    def leave(self, size: int) -> None:
        """A request of `size` bytes has been answered."""
        self._inside -= 1
        self._bytes -= size
        self._left.set()

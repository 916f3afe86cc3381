"""Limits on the concurrent calls of a gRPC server, in all and for each caller. For one event loop.

A caller is a principal or, without one, the address of a machine. Calls beyond a limit are refused before their request
is read. A few requests of each caller are read at the same time, and wait until there is memory to decode them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from services.runtime.errors import DeadlineExceeded, ResourceExhausted

_AGAIN_SECONDS = 1.0
_SMALL_BYTES = 16 * 1024
_CALLERS = 4
"""One caller may use a quarter of the budget."""
_DECODED = 8
"""Bytes that one byte of a request takes once it is read, at most: an id of one byte, in an array that has grown."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`message_bytes` is the largest message that gRPC takes. `request_bytes` is the memory of requests that are being
    answered. `streams_of_caller` are calls whose requests are a stream: gRPC takes in a whole message for each that
    waits for one. A connection of `age_seconds`, a tenth more or less, takes no further calls: its client looks the
    name up again and finds servers that are new there.
    """

    message_bytes: int = 8 * 1024 * 1024
    request_bytes: int = 128 * 1024 * 1024
    calls: int = 1024
    calls_of_caller: int = 256
    streams_of_caller: int = 32
    requests_being_read: int = 16
    reading_seconds: float = 30.0
    idle_seconds: float = 600.0
    age_seconds: float = 120.0
    connections: int = 1024
    handshake_seconds: float = 10.0


@dataclass(slots=True)
class _Line:
    """A caller's share: `places` for requests that are being read, and the bytes of memory that are `held`."""

    places: asyncio.Semaphore
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    held: int = 0
    users: int = 0


@dataclass(slots=True)
class CallLimits:
    """Keeps the limits of one server."""

    limits: Limits
    _calls: Counter[str] = field(default_factory=Counter)
    _streams: Counter[str] = field(default_factory=Counter)
    _all: int = 0
    _lines: dict[str, _Line] = field(default_factory=dict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _left: asyncio.Event = field(default_factory=asyncio.Event)
    _held: int = 0

    @contextmanager
    def call(self, caller: str, *, streamed: bool = False, vital: bool = False) -> Iterator[None]:
        """One call, whose requests may be a stream. A `vital` one, a health check, is taken by a server that is full.
        Raises ResourceExhausted.
        """
        if streamed and self._streams[caller] >= self.limits.streams_of_caller:
            raise _too_many(f"you have {self.limits.streams_of_caller} streams of requests here already")
        if self._calls[caller] >= self.limits.calls_of_caller:
            raise _too_many(f"you have {self.limits.calls_of_caller} calls here already")
        if self._all >= self.limits.calls and not vital:
            raise _too_many(f"this server has {self.limits.calls} calls already")
        self._calls[caller] += 1
        self._streams[caller] += streamed
        self._all += 1
        try:
            yield
        finally:
            self._all -= 1
            self._streams[caller] -= streamed
            self._calls[caller] -= 1
            if not self._calls[caller]:
                del self._calls[caller], self._streams[caller]

    @asynccontextmanager
    async def reading(self, caller: str) -> AsyncIterator[None]:
        """Read a request in this block, and wait for its memory: the caller's other requests wait until then."""
        with self._line(caller) as line:
            async with line.places:
                yield

    @asynccontextmanager
    async def holding(self, caller: str, size: int) -> AsyncIterator[None]:
        """A block to decode and answer a request of `size` bytes in, which waits for its memory; a small request does
        not wait. A caller has a quarter of the memory; a larger request is answered alone.
        """
        if size <= _SMALL_BYTES:
            yield
            return
        size *= _DECODED
        most = self.limits.request_bytes
        with self._line(caller) as line:
            async with line.turn:
                await self._until(lambda: not line.held or line.held + size <= most // _CALLERS)
                async with self._turn:
                    await self._until(lambda: not self._held or self._held + size <= most)
                    self._held += size
                    line.held += size
            try:
                yield
            finally:
                self._held -= size
                line.held -= size
                self._left.set()

    async def _until(self, fits: Callable[[], bool]) -> None:
        while not fits():
            self._left.clear()
            await self._left.wait()

    @contextmanager
    def _line(self, caller: str) -> Iterator[_Line]:
        line = self._lines.setdefault(caller, _Line(asyncio.Semaphore(self.limits.requests_being_read)))
        line.users += 1
        try:
            yield line
        finally:
            line.users -= 1
            if not line.users:
                del self._lines[caller]


@asynccontextmanager
async def arriving_within(seconds: float) -> AsyncIterator[None]:
    """Wait in this block for a message. Raises DeadlineExceeded."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise DeadlineExceeded(f"no whole message came within {seconds:g} s", reason="REQUEST_TOO_SLOW") from None


def _too_many(problem: str) -> ResourceExhausted:
    return ResourceExhausted(
        f"{problem}; end one, or come back later", retry_after=_AGAIN_SECONDS, reason="TOO_MANY_CALLS"
    )

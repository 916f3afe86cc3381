"""Limits of an HTTP server's connections, which uvicorn has none of: their number, and the time of a request's parts.

A connection waits while no whole header of a request has come over it. Where it waits too long, or a body takes too
long, it is closed. Where too many are open, the one that has waited longest makes room for the newest: callers who say
nothing, or send half a request, cannot keep others out.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 512
HEADER_SECONDS, BODY_SECONDS = 20.0, 60.0
_MOST_HEADER = 65_536  # bytes; uvicorn's own bound too
_FREE_PIECES, _PIECE_BYTES = 1000, 256
"""A body may come in this many pieces, and one more for each 256 bytes: each costs the event loop alike."""


@dataclass(slots=True)
class Connections:
    """The connections of one server. Used on one event loop."""

    most: int = MOST_CONNECTIONS
    header_seconds: float = HEADER_SECONDS
    body_seconds: float = BODY_SECONDS
    _open: set[_Connection] = field(default_factory=set)
    _waiting: dict[_Connection, None] = field(default_factory=dict)  # the longest first

    def protocol(self) -> type[asyncio.Protocol]:
        """The class that `uvicorn.Config(http=…)` takes."""
        return cast(type[asyncio.Protocol], partial(_Connection, self))

    def opened(self, connection: _Connection) -> None:
        """Count a connection. Where there is no room, the one that has waited longest is closed; else the new one."""
        self._open.add(connection)
        if len(self._open) > self.most:
            longest = next(iter(self._waiting), connection)
            self.closed(longest)
            longest.transport.abort()

    def waits(self, connection: _Connection, waits: bool) -> None:
        self._waiting.pop(connection, None)
        if waits and connection in self._open:
            self._waiting[connection] = None

    def closed(self, connection: _Connection) -> None:
        self._open.discard(connection)
        self._waiting.pop(connection, None)


class _Connection(H11Protocol):
    """uvicorn's connection, which a timer closes where a header or a body is too slow."""

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self.conn = _Counting(h11.SERVER, _MOST_HEADER)
        self._of = connections
        self._timed: str | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._of.opened(self)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._time(None)
        self._of.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def _look(self) -> None:
        """Time the part of a request that is to come next, if that is another than before."""
        if self.cycle is None or self.cycle.response_complete:
            self._time("header")
        else:
            self._time("body" if self.cycle.more_body else None)

    def _time(self, part: str | None) -> None:
        if part == self._timed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timed, self._timer = part, None
        self._of.waits(self, part == "header")
        if part is not None:
            seconds = self._of.header_seconds if part == "header" else self._of.body_seconds
            self._timer = self.loop.call_later(seconds, self.transport.abort)


class _Counting(h11.Connection):
    """h11's connection, which refuses a body in needlessly many pieces."""

    _pieces = _bytes = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._pieces = self._bytes = 0
        elif isinstance(event, h11.Data):
            self._pieces += 1
            self._bytes += len(event.data)
            if self._pieces > _FREE_PIECES + self._bytes // _PIECE_BYTES:
                raise h11.RemoteProtocolError("the body comes in too many pieces")
        return event

"""HTTP/1.1 connections to one server, with h11 and keep-alive.

A general client (redirects, cookies, proxies, a pool of many hosts) takes five times the CPU time for a request and its
stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import h11
import httpx2

_MOST_KEPT = 64  # connections that no request uses
_KEPT_SECONDS = 4.0  # vLLM and SGLang close them after five


class ConnectionBroken(Exception):
    """The server is unreachable, silent, breaks off, or does not speak HTTP/1.1. `sent`: how often it was sent the
    request.
    """

    sent = 1


class _Connection(asyncio.Protocol):
    """One connection. The server sends nothing without a request.

    A body is passed on in the receiving callback: waking a task for each piece would take longer than everything else.
    """

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.http = h11.Connection(h11.CLIENT)
        self.lost: str | None = None  # why it cannot be used any more
        self.ended = False  # by its server
        self.kept_at: float | None = None  # time since when no request uses it
        self._take: Callable[[bytes], None] | None = None  # reader of the current body
        self._awaited: asyncio.Future[h11.Event] | None = None  # the head of an answer, or the end of its body
        self._heard = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.kept_at is not None:
            self.close("it sent data without a request")
            return
        self._heard = asyncio.get_running_loop().time()
        self.http.receive_data(data)
        self._go_on()

    def eof_received(self) -> None:
        if self.kept_at is None:
            self.http.receive_data(b"")
            self._go_on()
        self.connection_lost(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = self.ended or self.lost is None
        self._lose(repr(error or "the connection ended"))

    def _lose(self, why: str) -> None:
        self.lost = self.lost or why
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_exception(ConnectionBroken(self.lost))

    def _go_on(self) -> None:
        """Parse received data, if an event is awaited."""
        if (awaited := self._awaited) is None or awaited.done():
            return
        try:
            while (event := self.http.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Data) and self._take is not None:
                    self._take(bytes(event.data))
                elif isinstance(event, h11.Response | h11.EndOfMessage):
                    if isinstance(event, h11.Response):
                        self.transport.pause_reading()  # until the body is read
                    awaited.set_result(event)
                    return
        except Exception as error:  # also an error of the body's reader
            awaited.set_exception(error)

    async def event(self, seconds: float, take: Callable[[bytes], None] | None = None) -> h11.Event:
        """The head of an answer or, with `take`, the end of its body, once `take` has got each piece of it.

        Raises ConnectionBroken, also after `seconds` of silence, h11.ProtocolError, and errors of `take`.
        """
        loop = asyncio.get_running_loop()
        self._take, self._awaited, self._heard = take, loop.create_future(), loop.time()
        self._go_on()
        if self.lost is not None and not self._awaited.done():
            raise ConnectionBroken(self.lost)
        if self._timer is None:
            self._timer = loop.call_later(seconds, self._look, seconds)
        if take is not None:
            self.transport.resume_reading()
        return await self._awaited

    def _look(self, seconds: float) -> None:
        """Check for silence, by one timer for a whole answer: a timer for each piece costs as much as reading it."""
        loop = asyncio.get_running_loop()
        since = loop.time() if self._awaited is None or self._awaited.done() else self._heard
        if loop.time() - since >= seconds:
            self.close(f"nothing came for {seconds:g} s")
        else:
            self._timer = loop.call_at(since + seconds, self._look, seconds)

    def keep(self, now: float) -> None:
        """Mark the connection as unused from now on."""
        self.kept_at = now
        self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self, why: str = "closed") -> None:
        self._stop()
        self.transport.abort()
        self._lose(why)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Status and headers of an answer, header names in lower case."""

    status: int
    headers: Mapping[str, str]
    _connection: _Connection
    _silence_seconds: float

    async def read(self, take: Callable[[bytes], None]) -> None:
        """Call `take` with each part of the body as it arrives. Raises ConnectionBroken, and errors of `take`."""
        await self._connection.event(self._silence_seconds, take)


class Connections:
    """Connections to the server at `url`. Used on one event loop; no request waits for another.

    Each request sends `headers` too. Connecting may take `connect_seconds`, and the server may be silent for
    `silence_seconds`.
    """

    def __init__(self, url: str, headers: Mapping[str, str], *, connect_seconds: float, silence_seconds: float) -> None:
        parts = urlsplit(url)
        self._tls = httpx2.create_ssl_context(trust_env=False) if parts.scheme == "https" else None
        self._host, self._port = parts.hostname or "", parts.port or (80 if self._tls is None else 443)
        self._prefix = parts.path.rstrip("/")
        self._headers = [("Host", parts.netloc.rpartition("@")[2]), *headers.items()]
        self._connect_seconds, self._silence_seconds = connect_seconds, silence_seconds
        self._kept: deque[_Connection] = deque()  # the longest unused first

    @asynccontextmanager
    async def asked(self, path: str, body: bytes | None, *, new_connection: bool = False) -> AsyncGenerator[HttpAnswer]:
        """The answer to a GET or, with a JSON body, a POST; `new_connection`: not on a kept one. Leaving before its
        end closes the connection, which ends the request at the server. Raises ConnectionBroken.
        """
        connection: _Connection | None = None
        try:
            connection, head = await self._begun(path, body, new_connection=new_connection)
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
            yield HttpAnswer(head.status_code, headers, connection, self._silence_seconds)
        except h11.ProtocolError as error:
            raise ConnectionBroken(repr(error)) from error
        finally:
            if connection is not None:
                self._keep(connection)

    async def _begun(self, path: str, body: bytes | None, *, new_connection: bool) -> tuple[_Connection, h11.Response]:
        """The answer's head and its connection. If a kept connection ends before the head, its server closed it while
        the request was under way, as llama-server does after a stream: the request is sent again on a new connection.
        """
        sent = 0
        while True:
            kept, sent = None if new_connection or sent else self._take(), sent + 1
            connection = kept or await self._connected()
            try:
                connection.transport.write(self._request(connection.http, path, body))
                while not isinstance(head := await connection.event(self._silence_seconds), h11.Response):
                    pass
            except (ConnectionBroken, h11.ProtocolError) as error:
                connection.close()
                if kept is None or not connection.ended:
                    broken = ConnectionBroken(str(error))
                    broken.sent = sent
                    raise broken from error
            except BaseException:
                connection.close()
                raise
            else:
                return connection, head

    def _request(self, http: h11.Connection, path: str, body: bytes | None) -> bytes:
        headers = list(self._headers)
        if body is not None:
            headers += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        head = h11.Request(method="GET" if body is None else "POST", target=self._prefix + path, headers=headers)
        parts = [http.send(head), b"" if body is None else http.send(h11.Data(body)), http.send(h11.EndOfMessage())]
        return b"".join(part or b"" for part in parts)

    async def _connected(self) -> _Connection:
        try:
            async with asyncio.timeout(self._connect_seconds):
                connecting = asyncio.get_running_loop().create_connection(
                    _Connection, self._host, self._port, ssl=self._tls
                )
                return (await connecting)[1]
        except (OSError, TimeoutError) as error:
            raise ConnectionBroken(repr(error)) from error

    def _take(self) -> _Connection | None:
        """The connection that was used last, if its server has not closed it."""
        self._close_old()
        while self._kept:
            connection = self._kept.pop()
            if connection.lost is None:
                connection.kept_at = None
                connection.http.start_next_cycle()
                return connection
        return None

    def _keep(self, connection: _Connection) -> None:
        http = connection.http
        if http.our_state is http.their_state is h11.DONE and not http.trailing_data[0]:
            connection.keep(asyncio.get_running_loop().time())
            self._kept.append(connection)
            self._close_old()
        else:
            connection.close()

    def _close_old(self) -> None:
        before = asyncio.get_running_loop().time() - _KEPT_SECONDS
        while self._kept and (len(self._kept) > _MOST_KEPT or (self._kept[0].kept_at or 0.0) < before):
            self._kept.popleft().close()

    def close(self) -> None:
        while self._kept:
            self._kept.pop().close()

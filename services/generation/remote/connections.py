"""HTTP/1.1 to one server: h11 reads and writes it, and connections are kept.

A client for everything (redirects, cookies, proxies, a pool of many hosts) takes five times the processor time of this
for a request and its stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import h11
import httpx2

_MOST_KEPT = 64  # connections that no request uses
_KEPT_SECONDS = 4.0  # vLLM and SGLang close them after five
_MOST_AHEAD = 1 << 18  # bytes that have come and are not read


class ConnectionBroken(Exception):
    """The server cannot be reached, says nothing, breaks off, or speaks no HTTP/1.1."""


class _Connection(asyncio.Protocol):
    """One connection. The server says nothing on it before it is asked."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.http = h11.Connection(h11.CLIENT)
        self.lost: str | None = None  # why it is of no use any more
        self.ended = False  # by its server
        self.kept_at: float | None = None  # since then no request uses it
        self._ahead = 0
        self._waiter: asyncio.Future[None] | None = None  # the answer is read, and nothing is there
        self._waits_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.kept_at is not None:
            self.close("it speaks unasked")
            return
        self._ahead += len(data)
        if self._ahead > _MOST_AHEAD:
            self.transport.pause_reading()
        self.http.receive_data(data)
        self._wake()

    def eof_received(self) -> None:
        if self.kept_at is None:
            self.http.receive_data(b"")
        self.connection_lost(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = self.ended or self.lost is None
        self.lost = self.lost or repr(error or "the connection ended")
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def event(self, seconds: float) -> h11.Event:
        """The next event of an answer. Raises ConnectionBroken, also where nothing comes for so long."""
        loop = asyncio.get_running_loop()
        while (event := self.http.next_event()) is h11.NEED_DATA:
            if self.lost is not None:
                raise ConnectionBroken(self.lost)
            if self._ahead > _MOST_AHEAD:
                self.transport.resume_reading()
            self._ahead, self._waiter, self._waits_since = 0, loop.create_future(), loop.time()
            if self._timer is None:
                self._timer = loop.call_later(seconds, self._look, seconds)
            await self._waiter
            self._waiter = None
        return cast(h11.Event, event)

    def _look(self, seconds: float) -> None:
        """One timer for all that is read of an answer: setting one for each piece costs as much as reading it."""
        loop = asyncio.get_running_loop()
        since = loop.time() if self._waiter is None else self._waits_since
        if loop.time() - since >= seconds:
            self.close(f"nothing came for {seconds:g} s")
        else:
            self._timer = loop.call_at(since + seconds, self._look, seconds)

    def keep(self, now: float) -> None:
        """No request uses it from now on."""
        self.kept_at = now
        self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self, why: str = "closed") -> None:
        self.lost = self.lost or why
        self._stop()
        self.transport.abort()
        self._wake()


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Status and headers of an answer, header names in small letters."""

    status: int
    headers: Mapping[str, str]
    _connection: _Connection
    _silence_seconds: float

    async def piece(self) -> bytes:
        """The next part of the body as it came; none is left where it is empty. Raises ConnectionBroken."""
        event = await self._connection.event(self._silence_seconds)
        return bytes(event.data) if isinstance(event, h11.Data) else b""


class Connections:
    """Connections to the server at `url`. On one event loop; no request waits for another.

    Each request sends `headers` too. The server may take `connect_seconds` until a connection stands, and then be
    silent for `silence_seconds`.
    """

    def __init__(self, url: str, headers: Mapping[str, str], *, connect_seconds: float, silence_seconds: float) -> None:
        parts = urlsplit(url)
        self._tls = httpx2.create_ssl_context(trust_env=False) if parts.scheme == "https" else None
        self._host, self._port = parts.hostname or "", parts.port or (80 if self._tls is None else 443)
        self._prefix = parts.path.rstrip("/")
        self._headers = [("Host", parts.netloc.rpartition("@")[2]), *headers.items()]
        self._connect_seconds, self._silence_seconds = connect_seconds, silence_seconds
        self._kept: deque[_Connection] = deque()  # the one that has waited longest first

    @asynccontextmanager
    async def asked(self, path: str, body: bytes | None) -> AsyncGenerator[HttpAnswer]:
        """The answer to a GET or, with a JSON body, a POST. Leaving before its end closes the connection, which ends
        the request at the server. Raises ConnectionBroken.
        """
        connection: _Connection | None = None
        try:
            connection, head = await self._begun(path, body)
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
            yield HttpAnswer(head.status_code, headers, connection, self._silence_seconds)
        except h11.ProtocolError as error:
            raise ConnectionBroken(repr(error)) from error
        finally:
            if connection is not None:
                self._keep(connection)

    async def _begun(self, path: str, body: bytes | None) -> tuple[_Connection, h11.Response]:
        """The answer's head, and the connection that it came on. A kept one that ends before was closed by its server
        while the request was on its way, as llama-server does after a stream: another one is taken.
        """
        while True:
            kept = self._take()
            connection = kept or await self._connected()
            try:
                connection.transport.write(self._request(connection.http, path, body))
                while not isinstance(head := await connection.event(self._silence_seconds), h11.Response):
                    pass
            except (ConnectionBroken, h11.ProtocolError):
                connection.close()
                if kept is None or not connection.ended:
                    raise
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
        """The one that was used last, if its server has not closed it."""
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

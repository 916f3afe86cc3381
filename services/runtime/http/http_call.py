"""One HTTP call with the standard library: bounded in time as a whole, and in bytes. Follows no redirect."""

from __future__ import annotations

import http.client
import io
import socket
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from services.client.identity import ClientTls

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_PIECE = 64 * 1024
_MOST_BYTES = 64 * 1024
_PORTS = {"http": 80, "https": 443}

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer to a call; of its body at most as much as was asked for."""

    status: int
    body: bytes


def get(url: str, seconds: float, most: int) -> HttpAnswer:
    """The first `most` bytes of a URL; gzip is unpacked. Raises OSError for all that goes wrong on the way.

    `seconds` are for the whole call: name, connection, TLS, request, headers and body; then TimeoutError, an OSError.
    """
    return _call("GET", url, None, {"Accept-Encoding": "gzip, identity"}, seconds, most)


def post(url: str, body: bytes, content_type: str, seconds: float) -> tuple[int, bytes]:
    """(status, body) of the answer, its first 64 KiB; in time and errors as `get`."""
    answer = _call("POST", url, body, {"Content-Type": content_type}, seconds, _MOST_BYTES)
    return answer.status, answer.body


def on_own_thread(work: Callable[[], _Value]) -> Future[_Value]:
    """`work()` on a thread of its own, for work that waits for other machines: it occupies no thread of a pool, and
    does not keep the process from ending.
    """
    outcome: Future[_Value] = Future()
    outcome.set_running_or_notify_cancel()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="calls out", daemon=True).start()
    return outcome


def _call(
    method: str, url: str, body: bytes | None, headers: Mapping[str, str], seconds: float, most: int
) -> HttpAnswer:
    limit = _TimeLimit(seconds)
    try:
        parts = urlsplit(url)
        if parts.scheme not in _PORTS:
            raise ValueError(f"expected http:// or https://, got {parts.scheme!r}")
        host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        with closing(_connected(host, port, limit)) as plain:
            if parts.scheme == "https":
                context = ClientTls.of_process().context()
                connection: http.client.HTTPConnection = http.client.HTTPSConnection(host, port, context=context)
                plain.settimeout(limit.left())
                reached: socket.socket = context.wrap_socket(plain, server_hostname=host)
            else:
                connection, reached = http.client.HTTPConnection(host, port), plain
            with closing(reached):
                connection.sock = limited = _LimitedSocket(reached, limit)
                connection.request(method, target, body, dict(headers))
                with closing(connection.getresponse()) as answer:
                    if limited.ended:  # http.client takes this for the end of the headers
                        raise http.client.IncompleteRead(b"")
                    return HttpAnswer(answer.status, _read(answer, most))
    except http.client.IncompleteRead:
        raise OSError(f"{url}: the connection ended within the answer") from None
    except (http.client.HTTPException, ValueError, zlib.error) as error:
        raise OSError(f"{url} does not speak HTTP: {error!r}") from None


def _read(answer: http.client.HTTPResponse, most: int) -> bytes:
    gzipped = answer.getheader("Content-Encoding", "identity").lower() == "gzip"
    unzip = zlib.decompressobj(wbits=31) if gzipped else None
    body = bytearray()
    while len(body) < most and (piece := answer.read1(_PIECE)):
        body += piece if unzip is None else unzip.decompress(piece, most - len(body))
    if len(body) < most and (answer.length or (unzip is not None and not unzip.eof)):  # read1 does not check it
        raise http.client.IncompleteRead(bytes(body), answer.length)
    return bytes(body[:most])


class _TimeLimit:
    """The time limit of a call."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds, more than zero. Raises TimeoutError."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left


class _LimitedSocket:
    """The part of a socket that http.client uses. A socket's own limit is for one operation, and a server that sends a
    byte now and then never reaches it: here each operation has what is left for the call.
    """

    def __init__(self, reached: socket.socket, limit: _TimeLimit) -> None:
        self._socket = reached
        self._limit = limit
        self.ended = False

    def sendall(self, data: ReadableBuffer) -> None:
        rest = memoryview(data)
        while rest:
            self._socket.settimeout(self._limit.left())
            rest = rest[self._socket.send(rest) :]

    def receive_into(self, buffer: WriteableBuffer) -> int:
        self._socket.settimeout(self._limit.left())
        received = self._socket.recv_into(buffer)
        self.ended = not received
        return received

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Received(self))

    def close(self) -> None:
        """Nothing: http.client closes a connection that will not be used again before it reads the body."""


class _Received(io.RawIOBase):
    """The bytes that a socket receives, as a stream."""

    def __init__(self, reached: _LimitedSocket) -> None:
        self._socket = reached

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        return self._socket.receive_into(buffer)


def _connected(host: str, port: int, limit: _TimeLimit) -> socket.socket:
    """A connection to the first address of `host` that takes one; each may use its part of the time that is left."""
    addresses = _addresses(host, port, limit)
    problem = OSError(f"{host} has no address")
    for tried, address in enumerate(addresses):
        try:
            return socket.create_connection((address, port), limit.left() / (len(addresses) - tried))
        except OSError as error:
            problem = error
    raise problem


def _addresses(host: str, port: int, limit: _TimeLimit) -> list[str]:
    """The addresses of `host`, resolved on another thread: the system's resolver takes no time limit."""
    try:
        found = on_own_thread(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)).result(limit.left())
    except TimeoutError:
        raise TimeoutError("timed out") from None
    return [str(address[0]) for *_, address in found]

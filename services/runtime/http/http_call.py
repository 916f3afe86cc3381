"""One HTTP call with the standard library: bounded in time and in bytes. Follows no redirect."""

from __future__ import annotations

import http.client
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from services.client.connection.tls import ClientTls

_PIECE = 64 * 1024
_MOST_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer to a call; of its body at most as much as was asked for."""

    status: int
    body: bytes


def get(url: str, seconds: float, most: int) -> HttpAnswer:
    """The first `most` bytes behind a URL; gzip is unpacked. Raises OSError for all that goes wrong on the way."""
    return _call("GET", url, None, {"Accept-Encoding": "gzip, identity"}, seconds, most)


def post(url: str, body: bytes, content_type: str, seconds: float) -> tuple[int, bytes]:
    """(status, body) of the answer, its first 64 KiB. Raises OSError for everything that goes wrong on the way."""
    answer = _call("POST", url, body, {"Content-Type": content_type}, seconds, _MOST_BYTES)
    return answer.status, answer.body


def _call(
    method: str, url: str, body: bytes | None, headers: Mapping[str, str], seconds: float, most: int
) -> HttpAnswer:
    deadline = time.monotonic() + seconds
    try:
        parts = urlsplit(url)
        connection = _connection(parts.scheme, parts.hostname or "", parts.port, seconds)
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request(method, target, body, dict(headers))
            answer = connection.getresponse()
            return HttpAnswer(answer.status, _read(answer, deadline, most))
        finally:
            connection.close()
    except (http.client.HTTPException, ValueError, zlib.error) as error:
        raise OSError(f"{url} does not speak HTTP: {error!r}") from None


def _read(answer: http.client.HTTPResponse, deadline: float, most: int) -> bytes:
    """A server that sends a byte now and then holds nobody for longer than the deadline."""
    gzipped = answer.getheader("Content-Encoding", "identity").lower() == "gzip"
    unzip = zlib.decompressobj(wbits=31) if gzipped else None
    body = bytearray()
    while len(body) < most and (piece := answer.read1(_PIECE)):
        body += piece if unzip is None else unzip.decompress(piece, most - len(body))
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    return bytes(body[:most])


def _connection(scheme: str, host: str, port: int | None, seconds: float) -> http.client.HTTPConnection:
    if scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=seconds, context=ClientTls.of_process().context())
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=seconds)
    raise ValueError(f"expected http:// or https://, got {scheme!r}")

"""One HTTP POST with the standard library: bounded in time and in bytes."""

from __future__ import annotations

import http.client
import ssl
from urllib.parse import urlsplit

from ledger.witness.add_checkpoint import PATH

_MOST_BYTES = 64 * 1024


def post_to_witness(prefix: str, body: bytes, seconds: float) -> tuple[int, bytes]:
    """(status, body) of add-checkpoint under a submission prefix. Raises OSError."""
    return post(f"{prefix.rstrip('/')}/{PATH}", body, "text/plain; charset=utf-8", seconds=seconds)


def post(url: str, body: bytes, content_type: str, seconds: float) -> tuple[int, bytes]:
    """(status, body) of the answer, its first 64 KiB. Raises OSError for everything that goes wrong on the way."""
    parts = urlsplit(url)
    try:
        connection = _connection(parts.scheme, parts.hostname or "", parts.port, seconds)
        try:
            connection.request("POST", parts.path or "/", body, {"Content-Type": content_type})
            answer = connection.getresponse()
            return answer.status, answer.read(_MOST_BYTES)
        finally:
            connection.close()
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"{url} does not speak HTTP: {error!r}") from None


def _connection(scheme: str, host: str, port: int | None, seconds: float) -> http.client.HTTPConnection:
    if scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=seconds, context=ssl.create_default_context())
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=seconds)
    raise ValueError(f"expected http:// or https://, got {scheme!r}")

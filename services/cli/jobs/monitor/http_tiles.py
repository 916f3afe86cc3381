"""A tiled log behind a URL prefix (C2SP tlog-tiles)."""

from __future__ import annotations

from ledger.errors import FormatError, NotFound
from services.runtime.http.http_call import get

_SECONDS = 30.0


class HttpTiles:
    """TileFiles over HTTP."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.rstrip("/")

    def read(self, path: str, most: int) -> bytes:
        """Raises NotFound (404, 410), FormatError for more than `most` bytes, OSError."""
        url = f"{self._prefix}/{path}"
        answer = get(url, _SECONDS, most + 1)
        if answer.status in (404, 410):
            raise NotFound(f"there is no {url}")
        if answer.status != 200:
            raise OSError(f"{url} answers {answer.status}")
        if len(answer.body) > most:
            raise FormatError(path, f"measures more than {most} bytes")
        return answer.body

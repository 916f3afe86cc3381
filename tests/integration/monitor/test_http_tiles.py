"""A server of tiles can send what it likes: a monitor waits and reads no more than it has to."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ledger.errors import FormatError, NotFound
from services.cli.monitor.sources import HttpTiles

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/log/"
    finally:
        server.shutdown()
        server.server_close()


def body(data: bytes, status: int = 200, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(data)

    return answer


def test_a_tile_is_read_plain_or_packed() -> None:
    for answer in (body(b"tile"), body(gzip.compress(b"tile"), content_encoding="gzip")):
        with answering(answer) as url:
            assert HttpTiles(url).read("tile/0/000", 4) == b"tile"


def test_a_prefix_is_kept() -> None:
    asked: list[str] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        body(b"note")(handler)

    with answering(answer) as url:
        HttpTiles(url).read("checkpoint", 100)
    assert asked == ["/log/checkpoint"]


@pytest.mark.parametrize("packed", [False, True])
def test_more_than_a_tile_can_hold_is_refused(packed: bool) -> None:
    data = bytes(50_000_000)
    answer = body(gzip.compress(data), content_encoding="gzip") if packed else body(data)
    with answering(answer) as url, pytest.raises(FormatError, match="more than 8192 bytes"):
        HttpTiles(url).read("tile/0/000", 8192)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (body(b"", 404), NotFound),
        (body(b"", 410), NotFound),
        (body(b"", 500), OSError),
        (body(b"", 302, location="http://127.0.0.1:1/"), OSError),
        (body(b"no gzip", content_encoding="gzip"), OSError),
    ],
)
def test_what_is_no_tile_is_said(answer: Answer, error: type[Exception]) -> None:
    with answering(answer) as url, pytest.raises(error):
        HttpTiles(url).read("tile/0/000", 8192)


def test_nobody_there_is_an_oserror() -> None:
    for url, said in (("http://127.0.0.1:1/", "refused"), ("http://[::/", "does not speak HTTP")):
        with pytest.raises(OSError, match=said):
            HttpTiles(url).read("checkpoint", 100)

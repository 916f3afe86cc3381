"""A server of tiles can send what it likes: a monitor waits and reads no more than it has to."""

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from ledger.bundle.report import BundleReport
from ledger.bundle.tiles import TileFolder, export_tiles
from ledger.errors import FormatError, NotFound
from services.cli.frame.exits import Unreachable
from services.cli.verify import tile_sources
from services.cli.verify.checks import check_bundle
from services.cli.verify.sources import TrustSources
from services.cli.verify.tile_sources import HttpTiles
from tests.fakes.http_server import QuietHandler, handled_by
from tests.unit.ledger.builders import KEYS, receipt
from tests.unit.ledger.monitor.listed_log import ListedLog

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    class Handler(QuietHandler):
        def do_GET(self) -> None:
            answer(self)

    with handled_by(Handler) as port:
        yield f"http://127.0.0.1:{port}/log/"


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
    with answering(answer) as url, pytest.raises(FormatError):
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


def test_a_server_that_is_not_there_is_an_oserror() -> None:
    for url, words in (("http://127.0.0.1:1/", "refused"), ("http://[::/", "does not speak HTTP")):
        with pytest.raises(OSError, match=words):
            HttpTiles(url).read("checkpoint", 100)


def served(folder: Path) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        path = folder / handler.path.removeprefix("/log/")
        body(path.read_bytes() if path.is_file() else b"", 200 if path.is_file() else 404)(handler)

    return answer


def verified(url: str, tmp_path: Path) -> BundleReport:
    return check_bundle(url, TrustSources(tmp_path / "trusted"), 1)


def test_a_log_behind_a_url_is_verified(tmp_path: Path) -> None:
    log, asked = ListedLog(), list[str]()
    log.append(*map(receipt, range(600)))
    for role in ("log", "receipts"):
        KEYS[role].publish(tmp_path / "trusted")

    def noting(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        served(tmp_path / "tiles")(handler)

    with answering(noting) as url:
        for size in (300, 600):
            TileFolder(tmp_path / "tiles").write(export_tiles(log.entries[:size], log.checkpoint(size)))
            asked.clear()
            report = verified(url, tmp_path)
            assert (report.ok, report.kinds) == (True, {"receipt": size})
            numbers = [path.partition("entries/")[2][:3] for path in asked if "entries" in path]
            assert sorted(numbers) == [f"{number:03d}" for number in range(-(-size // 256))]  # each once
        (tmp_path / "tiles/tile/entries/001").write_bytes(b"")
        assert not verified(url, tmp_path).ok


@pytest.mark.parametrize(
    "answer", [body(b"", 500), body(b"", 302, location="file:///etc/passwd"), body(b"no gzip", content_encoding="gzip")]
)
def test_a_log_that_cannot_be_fetched_is_neither_verified_nor_wrong(answer: Answer, tmp_path: Path) -> None:
    KEYS["log"].publish(tmp_path / "trusted")
    with answering(answer) as url, pytest.raises(Unreachable):
        verified(url, tmp_path)


def test_a_server_that_stays_slow_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = ListedLog()
    log.append(*map(receipt, range(600)))
    KEYS["log"].publish(tmp_path / "trusted")
    TileFolder(tmp_path / "tiles").write(export_tiles(log.entries, log.checkpoint()))
    clock = iter(range(10_000))
    monkeypatch.setattr(tile_sources, "monotonic", lambda: 40.0 * next(clock))  # each file takes 40 seconds
    with answering(served(tmp_path / "tiles")) as url, pytest.raises(Unreachable):
        verified(url, tmp_path)

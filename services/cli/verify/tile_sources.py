"""Logs as C2SP tiles, at a URL or in a folder, for `kolm verify` and `kolm monitor`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from ledger.bundle.folder import open_bundle
from ledger.bundle.layout import MAX_TOTAL_BYTES, BundleFiles
from ledger.bundle.tiles import CHECKPOINT, TiledBundle, TiledTree, TileFolder
from ledger.errors import FormatError, NotFound
from services.cli.frame import exits
from services.cli.frame.exits import Unreachable
from services.runtime.http.http_call import get

_READ_SECONDS = 30.0


_AT_ONCE = 8
_PATIENCE_SECONDS, _SECONDS_A_FILE = 60.0, 1.0
"""Time limit of a server for a log, in addition to that of each read."""


class HttpTiles:
    """TileFiles over HTTP."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.rstrip("/")

    def read(self, path: str, most: int) -> bytes:
        """Raises NotFound (404, 410), FormatError for more than `most` bytes, OSError."""
        url = f"{self._prefix}/{path}"
        answer = get(url, _READ_SECONDS, most + 1)
        if answer.status in (404, 410):
            raise NotFound(f"there is no {url}")
        if answer.status != 200:
            raise OSError(f"{url} answers {answer.status}")
        if len(answer.body) > most:
            raise FormatError(path, f"measures more than {most} bytes")
        return answer.body


def is_url(place: str) -> bool:
    return place.startswith(("http://", "https://"))


@contextmanager
def opened_log(place: str, fetching: Callable[[int], None]) -> Iterator[BundleFiles]:
    """A bundle, or a log in tiles. A URL is fetched into a temporary folder first, so that each file is read once and
    cannot change. `fetching` gets counts of entries.

    Raises NotFound, FormatError, Unreachable.
    """
    if is_url(place):
        with TemporaryDirectory(prefix="kolm-tiles-") as folder:
            yield _fetched(place, Path(folder), fetching)
    elif (Path(place) / CHECKPOINT).is_file() and not (Path(place) / "bundle.json").exists():
        yield TiledBundle.at(TileFolder(Path(place)))
    else:
        with open_bundle(Path(place)) as bundle:
            yield bundle


class _Fetched:
    """TileFiles that copies files into a folder, within a limit of time and of bytes."""

    def __init__(self, url: str, folder: Path) -> None:
        self._remote, self._folder, self._url = HttpTiles(url), folder, url
        self._room = MAX_TOTAL_BYTES
        self.until = monotonic() + _PATIENCE_SECONDS

    def read(self, path: str, most: int) -> bytes:
        if monotonic() > self.until:
            raise Unreachable(f"the log at {self._url} is too slow to be read", "copy its tiles to a folder")
        try:
            data = self._remote.read(path, most)
        except OSError as error:
            raise Unreachable(f"the log at {self._url} cannot be read: {error}") from None
        self._room -= len(data)
        if self._room < 0:
            raise exits.Failed(
                f"the log at {self._url} has more than {MAX_TOTAL_BYTES} bytes", "copy its tiles to a folder"
            )
        target = self._folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        return data


def _fetched(url: str, folder: Path, fetching: Callable[[int], None]) -> TiledBundle:
    """Fetch all files that a verification will read; it then reports missing ones."""
    files = _Fetched(url, folder)
    remote = TiledBundle.at(files)
    files.until += _SECONDS_A_FILE * len(remote.numbers())
    tree = TiledTree(files, remote.checkpoint.size)

    def fetch(number: int) -> int:
        return len(tree.bundle(number))

    numbers, waiting = iter(remote.numbers()), deque[Future[int]]()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            for number in numbers:
                waiting.append(pool.submit(fetch, number))
                if len(waiting) > 2 * _AT_ONCE:
                    fetching(waiting.popleft().result())
            while waiting:
                fetching(waiting.popleft().result())
        except (NotFound, FormatError):
            pass  # the checks report it
        finally:
            pool.shutdown(cancel_futures=True)
    return TiledBundle(TileFolder(folder), remote.note, remote.checkpoint)

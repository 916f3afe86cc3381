"""Where a monitor reads its log: a ledger service, an HTTP server or a folder of tiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ledger.bundle.tile_files import TileFiles
from ledger.bundle.tile_folder import TileFolder
from ledger.errors import StoreError
from services.cli.failures.exits import Away, UsageError
from services.cli.jobs.monitor.http_tiles import HttpTiles
from services.runtime.http.http_call import on_own_thread


class LogFiles:
    """TileFiles that say in one way where the log cannot be reached. A read that hangs is left by an exception of a
    signal's handler: another thread waits for the answer, with gRPC's locks.
    """

    def __init__(self, files: TileFiles, place: str, failures: tuple[type[Exception], ...]) -> None:
        self._files = files
        self._place = place
        self._failures = failures

    def read(self, path: str, most: int) -> bytes:
        """Raises Away, and LedgerError for what is not there or not in form."""
        try:
            return on_own_thread(partial(self._files.read, path, most)).result()
        except self._failures as error:
            raise Away(f"the log at {self._place} cannot be read: {error}") from None


@contextmanager
def opened_log(ledger: str, tiles: str | None, *, witnessed: bool) -> Iterator[LogFiles]:
    """The log at `tiles` (a URL or a folder), or without that the one of a ledger service, whose checkpoints then are
    those that enough witnesses have cosigned, if `witnessed`. Raises UsageError.
    """
    if tiles is None:
        # Imported here: following tiles needs no gRPC.
        from services.client import LedgerClient
        from services.client.errors import KolmError
        from services.client.ledger.ledger_tiles import LedgerTiles

        with LedgerClient.connect(ledger) as client:
            yield LogFiles(LedgerTiles(client, witnessed=witnessed), ledger, (KolmError,))
    elif tiles.startswith(("http://", "https://")):
        yield LogFiles(HttpTiles(tiles), tiles, (OSError,))
    elif "://" in tiles:
        raise UsageError(f"--tiles: expected http://…, https://… or a folder, got {tiles!r}")
    else:
        yield LogFiles(TileFolder(Path(tiles)), tiles, (StoreError,))

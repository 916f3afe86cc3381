"""A monitor's sources, its log and its promises, and the webhook for its findings."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ledger.bundle.tiles import TileFiles, TileFolder
from ledger.encoding.text_forms import timestamp
from ledger.errors import StoreError
from ledger.monitor.finding import Finding
from ledger.monitor.judgement import Promised
from services.cli.frame.exits import Unreachable, UsageError
from services.cli.frame.options import ledger_at
from services.cli.frame.values import read_bytes
from services.cli.verify.tile_sources import HttpTiles, is_url
from services.runtime.http.http_call import on_own_thread, post

_MOST_BYTES = 64 * 1024

_POST_SECONDS = 10.0
_PAUSES = (0.0, 1.0, 4.0)
"""Pauses before each attempt, in seconds."""


class LogFiles:
    """TileFiles that raise Unreachable for every failure to read. An exception of a signal's handler ends a read that
    hangs, because another thread waits for the answer, with gRPC's locks.
    """

    def __init__(self, files: TileFiles, place: str, failures: tuple[type[Exception], ...]) -> None:
        self._files = files
        self._place = place
        self._failures = failures

    def read(self, path: str, most: int) -> bytes:
        """Raises Unreachable, and LedgerError for a missing or malformed file."""
        try:
            return on_own_thread(partial(self._files.read, path, most)).result()
        except self._failures as error:
            raise Unreachable(f"the log at {self._place} cannot be read: {error}") from None


@contextmanager
def opened_log(ledger: str, tiles: str | None, *, witnessed: bool) -> Iterator[LogFiles]:
    """The log at `tiles` (a URL or a folder), or else of a ledger service, with checkpoints that enough witnesses have
    cosigned if `witnessed`. Raises UsageError.
    """
    if tiles is None:
        # Imported here: following tiles needs no gRPC.
        from services.client.errors import KolmError
        from services.client.ledger.ledger_tiles import LedgerTiles

        with ledger_at(ledger) as client:
            yield LogFiles(LedgerTiles(client, witnessed=witnessed), ledger, (KolmError,))
    elif is_url(tiles):
        yield LogFiles(HttpTiles(tiles), tiles, (OSError,))
    elif "://" in tiles:
        raise UsageError(f"--tiles: expected http://…, https://… or a folder, got {tiles!r}")
    else:
        yield LogFiles(TileFolder(Path(tiles)), tiles, (StoreError,))


def read_promises(places: Iterable[Path]) -> tuple[Promised, ...]:
    """The promises in files, and in `*.json` of folders. Raises UsageError for an unreadable one.

    An empty file in a folder is skipped, because it is still being written.
    """
    found = []
    for place in places:
        for path in sorted(place.glob("*.json")) if place.is_dir() else [place]:
            data = read_bytes("--promise", path, _MOST_BYTES)
            if data or path == place:
                found.append(Promised(str(path), data))
    return tuple(found)


class Webhook:
    """A URL that gets findings by POST."""

    def __init__(self, url: str, log: str) -> None:
        """`log` names the followed log. Raises UsageError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--webhook: expected http://… or https://…, got {url!r}")
        self._url = url
        self._log = log

    def send(self, finding: Finding, size: int, now: datetime) -> str | None:
        """Send a finding, in several attempts. Returns None for an answer 2xx, else the last problem."""
        body = json.dumps(webhook_body(finding, self._log, size, now), ensure_ascii=False).encode()
        problem = ""
        for pause in _PAUSES:
            time.sleep(pause)
            try:
                status, _ = post(self._url, body, "application/json", _POST_SECONDS)
            except OSError as error:
                problem = str(error)
                continue
            if 200 <= status < 300:
                return None
            problem = f"answers {status}"
        return problem


def webhook_body(finding: Finding, log: str, size: int, now: datetime) -> dict[str, Any]:
    """The body of a POST (docs/monitoring.md)."""
    return {"type": "kolm.finding.v1", "log": log, "size": size, "found_at": timestamp(now), **finding.to_document()}

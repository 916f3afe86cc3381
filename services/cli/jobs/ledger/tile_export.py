"""Brings a folder of static tiles up to a ledger."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ledger.bundle.tile_folder import TileFolder
from ledger.bundle.tlog_tiles import CHECKPOINT, export_tiles
from services.cli.failures.exits import UsageError
from services.client import LedgerClient
from services.client.errors import NotFound
from services.client.ledger.log import SignedCheckpoint


@dataclass(frozen=True, slots=True)
class WrittenTiles:
    """How many entries the folder showed before, and shows now."""

    before: int
    size: int


def write_tiles(folder: Path, ledger: str) -> WrittenTiles:
    """Raises ProofError for a log that does not extend what the folder shows, which then stays as it is; UsageError,
    KolmError, FormatError, NotFound, StoreError.
    """
    tiles = TileFolder(folder)
    published = tiles.published()
    _check_own(folder)
    with LedgerClient.connect(ledger) as client:
        checkpoint = _newest(client, published.size)

        def entries() -> Iterator[bytes]:
            with client.watch(published.start) as watched:
                for each in watched:
                    yield each.entry

        tiles.write(export_tiles(entries(), checkpoint.note, published))
    return WrittenTiles(published.size, checkpoint.tree_size)


def _check_own(folder: Path) -> None:
    if folder.exists() and any(each.name.lstrip(".") not in (CHECKPOINT, "tile") for each in folder.iterdir()):
        raise UsageError(f"{folder} holds other files than tiles", "name a new or empty folder")


def _newest(client: LedgerClient, size: int) -> SignedCheckpoint:
    """The newest checkpoint that enough witnesses have cosigned, unless the folder is beyond that already."""
    try:
        witnessed = client.checkpoint(witnessed=True)
    except NotFound:
        return client.checkpoint()
    return witnessed if witnessed.tree_size >= size else client.checkpoint()

"""A ledger server as the files of C2SP tlog-tiles, each made when it is read."""

from __future__ import annotations

from itertools import islice

from ledger import errors
from ledger.bundle.tiles import CHECKPOINT, TilePath, entry_bundle
from ledger.tree.merkle import HASH_BYTES
from ledger.tree.tile import TILE_WIDTH
from services.client.errors import DataLoss, NotFound
from services.client.ledger.ledger import LedgerClient

_SECONDS = 30.0
"""The time limit for the entries of one bundle."""


class LedgerTiles:
    """TileFiles over a LedgerClient, unchecked. Keeps nothing; thread-safe.

    The checkpoint is the newest, or (`witnessed`) the newest that the ledger counts as witnessed.
    """

    def __init__(self, client: LedgerClient, *, witnessed: bool = False) -> None:
        self._client = client
        self._witnessed = witnessed

    def read(self, path: str, most: int) -> bytes:
        """Raises FormatError for an invalid path, the ledger's NotFound beyond the end of the tree, ProofError for
        damaged data, KolmError.
        """
        try:
            return self._read(path)[:most]
        except NotFound as error:
            raise errors.NotFound(f"{path}: {error.message}") from None
        except DataLoss as error:
            raise errors.ProofError(f"{path}: the ledger cannot read it: {error.message}") from None

    def _read(self, path: str) -> bytes:
        if path == CHECKPOINT:
            return self._client.checkpoint(witnessed=self._witnessed).note
        wanted = TilePath.parse(path)
        return self._entries(wanted) if wanted.level is None else self._hashes(wanted, wanted.level)

    def _hashes(self, wanted: TilePath, level: int) -> bytes:
        hashes = self._client.tile(level, wanted.number)
        if len(hashes) < wanted.width * HASH_BYTES:
            raise errors.NotFound(f"{wanted}: the log is not that long yet")
        return hashes[: wanted.width * HASH_BYTES]

    def _entries(self, wanted: TilePath) -> bytes:
        with self._client.watch(wanted.number * TILE_WIDTH, timeout=_SECONDS) as watched:
            entries = [each.entry for each in islice(watched, wanted.width)]
        if len(entries) < wanted.width:
            raise errors.NotFound(f"{wanted}: the log is not that long yet")
        return entry_bundle(entries)

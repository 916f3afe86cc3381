"""The files of a tiled log (C2SP tlog-tiles), wherever they are, as a tree and its entries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ledger.bundle.tlog_tiles import (
    CHECKPOINT,
    ENTRIES,
    MAX_BUNDLE_BYTES,
    MAX_CHECKPOINT_BYTES,
    read_entry_bundle,
    tile_path,
)
from ledger.errors import FormatError, NotFound
from ledger.tree.merkle import HASH_BYTES
from ledger.tree.tile import TILE_BYTES, TILE_WIDTH, tile_width


class TileFiles(Protocol):
    """A folder, an HTTP server, or a ledger that makes the files as they are asked for. Nothing in them is trusted."""

    def read(self, path: str, most: int) -> bytes:
        """One file, of which `most` bytes are enough. Raises NotFound, and its own error where it cannot be asked."""
        ...


class TiledTree:
    """The tree of the first `size` entries. A TileReader, for proofs; and the entries themselves."""

    def __init__(self, files: TileFiles, size: int) -> None:
        self._files = files
        self._size = size

    def tile(self, level: int, number: int) -> bytes:
        """Raises NotFound where the tree or the files have no such tile."""
        width = tile_width(self._size, level, number)
        if not width:
            raise NotFound(f"a tree of {self._size} entries has no tile {level}/{number}")
        return self._read(level, number, width, TILE_BYTES)[: width * HASH_BYTES]

    def entries(self, start: int) -> Iterator[bytes]:
        """The entries from `start` on. Raises NotFound, FormatError for files that do not hold them."""
        for number in range(start // TILE_WIDTH, -(-self._size // TILE_WIDTH)):
            first = number * TILE_WIDTH
            width = min(TILE_WIDTH, self._size - first)
            entries = read_entry_bundle(self._read(ENTRIES, number, width, MAX_BUNDLE_BYTES))
            if len(entries) < width:
                raise FormatError(tile_path(ENTRIES, number, width), f"holds {len(entries)} entries")
            yield from entries[max(0, start - first) : width]

    def _read(self, level: int | str, number: int, width: int, most: int) -> bytes:
        """A partial tile may be gone once the full one is there ("Partial Tiles")."""
        try:
            return self._files.read(tile_path(level, number, width), most)
        except NotFound:
            if width == TILE_WIDTH:
                raise
            return self._files.read(tile_path(level, number), most)


def read_checkpoint(files: TileFiles) -> bytes:
    """The signed note. Raises NotFound."""
    return files.read(CHECKPOINT, MAX_CHECKPOINT_BYTES)

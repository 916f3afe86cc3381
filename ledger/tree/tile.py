"""The tree as C2SP tlog-tiles: 256 hashes to a tile; level 0 holds leaf hashes, each level the hashes of tiles below.

The store keeps one blob a tile, never a row a node. Appending rewrites the rightmost tile of each level (at most 8
KiB, and a log of 10^6 entries has three levels); a proof reads two tiles a level at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ledger.errors import NotFound
from ledger.tree.merkle import HASH_BYTES, node_hash

TILE_HEIGHT = 8
TILE_WIDTH = 1 << TILE_HEIGHT
TILE_BYTES = TILE_WIDTH * HASH_BYTES

_MOST_TILES_CACHED = 256  # 2 MiB
_MOST_NODES_CACHED = 65_536  # about 10 MiB


@dataclass(frozen=True, slots=True)
class Tile:
    """Tile `number` of `level`; partial while it holds fewer than TILE_WIDTH hashes."""

    level: int
    number: int
    hashes: bytes


class TileReader(Protocol):
    """A source of tiles."""

    def tile(self, level: int, number: int) -> bytes:
        """The hashes that a tile has now. Raises NotFound if it is missing, StoreError."""
        ...


class TileHashes:
    """A HashReader over tiles. Caches hashes, because those of complete subtrees never change. Thread-safe (a race at
    worst computes a hash twice).
    """

    def __init__(self, tiles: TileReader) -> None:
        self._reader = tiles
        self._tiles: dict[tuple[int, int], bytes] = {}
        self._nodes: dict[tuple[int, int], bytes] = {}

    def subtree(self, level: int, number: int) -> bytes:
        """The hash of a complete subtree. Raises NotFound if the tree is too small."""
        tile_level, height = divmod(level, TILE_HEIGHT)
        if height == 0:
            return self._stored(tile_level, number)
        known = self._nodes.get((level, number))
        if known is None:
            known = node_hash(self.subtree(level - 1, 2 * number), self.subtree(level - 1, 2 * number + 1))
            _bounded(self._nodes, _MOST_NODES_CACHED)[level, number] = known
        return known

    def _stored(self, tile_level: int, place: int) -> bytes:
        number, offset = divmod(place, TILE_WIDTH)
        start, end = offset * HASH_BYTES, (offset + 1) * HASH_BYTES
        hashes = self._tiles.get((tile_level, number), b"")
        if len(hashes) < end:  # not read yet, or read when it was shorter
            hashes = self._reader.tile(tile_level, number)
            _bounded(self._tiles, _MOST_TILES_CACHED)[tile_level, number] = hashes
        if len(hashes) < end:
            raise NotFound(f"tile {tile_level}/{number} holds {len(hashes) // HASH_BYTES} hashes, not {offset + 1}")
        return hashes[start:end]


@dataclass(frozen=True, slots=True)
class TileEdge:
    """The partial tile at the right edge of each level; appending needs no other tiles. Immutable."""

    size: int = 0
    partial: tuple[bytes, ...] = ()

    @classmethod
    def at(cls, size: int, tiles: TileReader) -> TileEdge:
        """The edge of a tree of `size` leaves. Raises NotFound if `tiles` does not hold it."""
        partial = []
        level = 0
        while size >> (TILE_HEIGHT * level):
            number, width = divmod(size >> (TILE_HEIGHT * level), TILE_WIDTH)
            hashes = tiles.tile(level, number)[: width * HASH_BYTES] if width else b""
            if len(hashes) < width * HASH_BYTES:
                raise NotFound(f"tile {level}/{number} holds fewer than {width} hashes")
            partial.append(hashes)
            level += 1
        return cls(size, tuple(partial))

    def append(self, leaves: Iterable[bytes]) -> tuple[TileEdge, tuple[Tile, ...]]:
        """The edge after more leaf hashes, and the new and changed tiles."""
        size, partial = self.size, [bytearray(hashes) for hashes in self.partial]
        written: dict[tuple[int, int], Tile] = {}
        for leaf in leaves:
            grown, level = leaf, 0
            while True:
                if level == len(partial):
                    partial.append(bytearray())
                number = size >> (TILE_HEIGHT * (level + 1))
                partial[level] += grown
                written[level, number] = Tile(level, number, b"")
                if len(partial[level]) < TILE_BYTES:
                    break
                written[level, number] = Tile(level, number, bytes(partial[level]))
                grown = full_tile_hash(partial[level])
                partial[level].clear()
                level += 1
            size += 1
        tiles = (tile if tile.hashes else Tile(*key, bytes(partial[key[0]])) for key, tile in written.items())
        return TileEdge(size, tuple(bytes(hashes) for hashes in partial)), tuple(tiles)


def tile_width(size: int, level: int, number: int) -> int:
    """The number of hashes in a tile of a tree of `size` leaves; 0 if the tree has no such tile."""
    return max(0, min(TILE_WIDTH, (size >> (TILE_HEIGHT * level)) - TILE_WIDTH * number))


def full_tile_hash(hashes: bytes | bytearray) -> bytes:
    """The Merkle hash over the 256 hashes of a full tile, which is one hash of the level above."""
    row = [bytes(hashes[at : at + HASH_BYTES]) for at in range(0, TILE_BYTES, HASH_BYTES)]
    while len(row) > 1:
        row = [node_hash(row[at], row[at + 1]) for at in range(0, len(row), 2)]
    return row[0]


def _bounded(cache: dict[tuple[int, int], bytes], most: int) -> dict[tuple[int, int], bytes]:
    if len(cache) >= most:
        cache.clear()
    return cache

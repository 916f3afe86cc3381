"""A log as the static files of C2SP tlog-tiles, so that other people's tools can fetch, verify and monitor it.

Follows c2sp.org/tlog-tiles: `checkpoint`, `tile/<L>/<N>[.p/<W>]` and `tile/entries/<N>[.p/<W>]`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import islice

from ledger.bundle.layout import BundleFile
from ledger.errors import ProofError
from ledger.keys.note import Note
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.merkle import HASH_BYTES, Frontier, leaf_hash
from ledger.tree.tile import TILE_BYTES, TILE_WIDTH, TileEdge


def tile_path(level: int | str, number: int, width: int = TILE_WIDTH) -> str:
    """The path of a tile, or of an entry bundle where `level` is "entries", that holds `width` of 256 hashes.

    The number is cut into elements of three digits, all but the last with an x: 1234067 is x001/x234/067.
    """
    elements = [f"{number % 1000:03d}"]
    while number := number // 1000:
        elements.insert(0, f"x{number % 1000:03d}")
    return f"tile/{level}/{'/'.join(elements)}" + (f".p/{width}" if width < TILE_WIDTH else "")


def export_tiles(entries: Iterable[bytes], checkpoint: bytes) -> Iterator[BundleFile]:
    """The files of a log that stands at a signed checkpoint; `entries` are its entries from 0 on.

    Full tiles come as they are complete, the partial ones and the checkpoint last, so that a server of the folder
    never shows a checkpoint before its tiles. Raises ProofError for other entries than the checkpoint's, once
    they have been read.
    """
    head = Checkpoint.from_text(Note.from_bytes(checkpoint).text)
    edge, frontier = TileEdge(), Frontier()
    remaining = islice(entries, head.size)
    while some := list(islice(remaining, TILE_WIDTH)):
        yield BundleFile(tile_path("entries", edge.size // TILE_WIDTH, len(some)), b"".join(map(_prefixed, some)))
        leaves = [leaf_hash(entry) for entry in some]
        edge, tiles = edge.append(leaves)
        frontier = reduce(Frontier.append, leaves, frontier)
        for tile in tiles:
            if len(tile.hashes) == TILE_BYTES:
                yield BundleFile(tile_path(tile.level, tile.number), tile.hashes)
    if (frontier.size, frontier.root()) != (head.size, head.root):
        raise ProofError(f"the first {frontier.size} entries are not those of the checkpoint over {head.size}")
    for level, hashes in enumerate(edge.partial):
        if hashes:
            number = edge.size // TILE_WIDTH ** (level + 1)
            yield BundleFile(tile_path(level, number, len(hashes) // HASH_BYTES), hashes)
    yield BundleFile("checkpoint", checkpoint)


def _prefixed(entry: bytes) -> bytes:
    return struct.pack(">H", len(entry)) + entry

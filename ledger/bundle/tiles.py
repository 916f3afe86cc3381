"""A log as the static files of C2SP tlog-tiles, which other tools can fetch, verify and monitor.

Follows c2sp.org/tlog-tiles: `checkpoint`, `tile/<L>/<N>[.p/<W>]` and `tile/entries/<N>[.p/<W>]`. This file has the
paths and the bytes, the tree and the entries in them, and a folder of them that grows with its log, for any web server.
"""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Protocol

from ledger.bundle.layout import MANIFEST, MAX_FILES, PROOF, BundleFile, BundleManifest, Span
from ledger.durable_file import write_durably
from ledger.errors import FormatError, NotFound, ProofError, StoreError
from ledger.keys.note import Note
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.entry import MAX_ENTRY_BYTES
from ledger.tree.merkle import EMPTY_ROOT, HASH_BYTES, Frontier, leaf_hash
from ledger.tree.tile import TILE_BYTES, TILE_WIDTH, TileEdge, TileHashes, TileReader, tile_width

CHECKPOINT, ENTRIES = "checkpoint", "entries"
MAX_CHECKPOINT_BYTES = 128 * 1024
MAX_BUNDLE_BYTES = TILE_WIDTH * (2 + MAX_ENTRY_BYTES)

_PATH = re.compile(r"tile/(0|[1-9][0-9]?|entries)/((?:x[0-9]{3}/){0,6}[0-9]{3})(?:\.p/([1-9][0-9]{0,2}))?")
_LARGEST_LEVEL = 63
_MOST_TILES = 2**55
"""Tiles of level 0 in the largest possible log (2^63 entries)."""

_NO_TIME = "1970-01-01T00:00:00.000Z"


@dataclass(frozen=True, slots=True)
class TilePath:
    """The object of a path: a tile, or a bundle of entries if `level` is None, with `width` of 256 hashes."""

    level: int | None
    number: int
    width: int = TILE_WIDTH

    @classmethod
    def parse(cls, path: str) -> TilePath:
        """Raises FormatError for any other path than the specification's for a tile."""
        found = _PATH.fullmatch(path)
        if found is None:
            raise FormatError("path", f"{path[:100]!r} is not a path of a tile")
        level, number, width = found.groups()
        digits = number.replace("x", "").replace("/", "")
        parsed = cls(None if level == ENTRIES else int(level), int(digits), int(width or TILE_WIDTH))
        if str(parsed) != path or (parsed.level or 0) > _LARGEST_LEVEL or parsed.number >= _MOST_TILES:
            raise FormatError("path", f"{path[:100]!r} is not a path of a tile")
        return parsed

    def __str__(self) -> str:
        return tile_path(ENTRIES if self.level is None else self.level, self.number, self.width)


def tile_path(level: int | str, number: int, width: int = TILE_WIDTH) -> str:
    """The path of a tile with `width` of 256 hashes, or of an entry bundle if `level` is "entries".

    The number is cut into elements of three digits, all but the last with an x: 1234067 is x001/x234/067.
    """
    elements = [f"{number % 1000:03d}"]
    while number := number // 1000:
        elements.insert(0, f"x{number % 1000:03d}")
    return f"tile/{level}/{'/'.join(elements)}" + (f".p/{width}" if width < TILE_WIDTH else "")


def entry_bundle(entries: Iterable[bytes]) -> bytes:
    """An entry bundle: entries with their lengths before them ("Log entries")."""
    return b"".join(struct.pack(">H", len(entry)) + entry for entry in entries)


def read_entry_bundle(data: bytes) -> list[bytes]:
    """The entries of an entry bundle. Raises FormatError for bytes that end within an entry."""
    entries, at = [], 0
    while at < len(data):
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        if end > len(data) or at + 2 > len(data):
            raise FormatError("entries", "the bundle ends within an entry")
        entries.append(data[at + 2 : end])
        at = end
    return entries


@dataclass(frozen=True, slots=True)
class Published:
    """The published tiles of the tree of `size` entries under `root`. `edge` and `frontier` are the state at its last
    full bundle, where writing continues.
    """

    size: int = 0
    root: bytes = EMPTY_ROOT
    edge: TileEdge = field(default_factory=TileEdge)
    frontier: Frontier = field(default_factory=Frontier)

    @classmethod
    def at(cls, checkpoint: Checkpoint, tiles: TileReader) -> Published:
        """A checkpoint's tree, from `tiles`. Raises NotFound if a tile is missing."""
        full = checkpoint.size - checkpoint.size % TILE_WIDTH
        return cls(checkpoint.size, checkpoint.root, TileEdge.at(full, tiles), Frontier.at(full, TileHashes(tiles)))

    @property
    def start(self) -> int:
        """The first entry that is needed to continue."""
        return self.frontier.size


def export_tiles(
    entries: Iterable[bytes], checkpoint: bytes, published: Published | None = None
) -> Iterator[BundleFile]:
    """The files of a log at a signed checkpoint, without the complete `published` files.

    `entries` are its entries from `published.start` on. Full tiles come as they are complete, the partial ones and the
    checkpoint last, so that a server of the folder never shows a checkpoint before its tiles. Raises ProofError for a
    log that does not extend what was published, before anything is written, and for other entries than the
    checkpoint's, once they have been read.
    """
    before = published or Published()
    head = Checkpoint.from_text(Note.from_bytes(checkpoint).text)
    if head.size < before.size:
        raise ProofError(f"the log shows {head.size} entries, {before.size} were published: it was rolled back")
    edge, frontier = before.edge, before.frontier
    _check_extends(frontier, before)
    remaining = islice(entries, head.size - before.start)
    while some := list(islice(remaining, TILE_WIDTH)):
        leaves = [leaf_hash(entry) for entry in some]
        frontier = _grown(frontier, leaves, before)
        yield BundleFile(tile_path(ENTRIES, edge.size // TILE_WIDTH, len(some)), entry_bundle(some))
        edge, tiles = edge.append(leaves)
        for tile in tiles:
            if len(tile.hashes) == TILE_BYTES:
                yield BundleFile(tile_path(tile.level, tile.number), tile.hashes)
    if (frontier.size, frontier.root()) != (head.size, head.root):
        raise ProofError(f"the first {frontier.size} entries do not have the root of the checkpoint over {head.size}")
    for level, hashes in enumerate(edge.partial):
        if hashes:
            number = edge.size // TILE_WIDTH ** (level + 1)
            yield BundleFile(tile_path(level, number, len(hashes) // HASH_BYTES), hashes)
    yield BundleFile(CHECKPOINT, checkpoint)


def _grown(frontier: Frontier, leaves: Sequence[bytes], before: Published) -> Frontier:
    for leaf in leaves:
        frontier = frontier.append(leaf)
        _check_extends(frontier, before)
    return frontier


def _check_extends(frontier: Frontier, before: Published) -> None:
    if frontier.size == before.size and frontier.root() != before.root:
        raise ProofError(f"the first {before.size} entries differ from the published ones: the log has forked")


class TileFiles(Protocol):
    """A source of tiles: a folder, an HTTP server, or a ledger that makes them on request. Its files are not
    trusted.
    """

    def read(self, path: str, most: int) -> bytes:
        """One file, of which `most` bytes are enough. Raises NotFound, and the source's errors."""
        ...


class TiledTree:
    """The tree of the first `size` entries. A TileReader, for proofs, with the entries."""

    def __init__(self, files: TileFiles, size: int) -> None:
        self._files = files
        self._size = size

    def tile(self, level: int, number: int) -> bytes:
        """Raises NotFound if the tree or the files have no such tile."""
        width = tile_width(self._size, level, number)
        if not width:
            raise NotFound(f"a tree of {self._size} entries has no tile {level}/{number}")
        return self._read(level, number, width, TILE_BYTES)[: width * HASH_BYTES]

    def entries(self, start: int) -> Iterator[bytes]:
        """The entries from `start` on. Raises NotFound, FormatError for files with other entries."""
        for number in range(start // TILE_WIDTH, -(-self._size // TILE_WIDTH)):
            yield from self.bundle(number)[max(0, start - number * TILE_WIDTH) :]

    def bundle(self, number: int) -> list[bytes]:
        """The entries of one entry bundle that are in the tree. Raises as `entries` does."""
        width = min(TILE_WIDTH, self._size - number * TILE_WIDTH)
        entries = read_entry_bundle(self._read(ENTRIES, number, width, MAX_BUNDLE_BYTES))
        if len(entries) < width:
            raise FormatError(tile_path(ENTRIES, number, width), f"holds {len(entries)} entries")
        return entries[:width]

    def _read(self, level: int | str, number: int, width: int, most: int) -> bytes:
        """Read the full tile if a partial tile is gone ("Partial Tiles")."""
        try:
            return self._files.read(tile_path(level, number, width), most)
        except NotFound:
            if width == TILE_WIDTH:
                raise
            return self._files.read(tile_path(level, number), most)


def read_checkpoint(files: TileFiles) -> bytes:
    """The signed note. Raises NotFound."""
    return files.read(CHECKPOINT, MAX_CHECKPOINT_BYTES)


class TileFolder:
    """TileFiles in a folder. One process writes at a time; readers see a checkpoint only with all of its tiles."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, path: str, most: int) -> bytes:
        """Raises NotFound, StoreError."""
        try:
            with (self._folder / path).open("rb") as file:
                return file.read(most)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"there is no {path} in {self._folder}") from None
        except OSError as error:
            raise StoreError(f"cannot read {self._folder / path}: {error.strerror}") from None

    def published(self) -> Published:
        """The tree in the folder; an empty tree without a checkpoint. Raises FormatError for a malformed checkpoint,
        NotFound if tiles are missing, StoreError.
        """
        try:
            note = Note.from_bytes(read_checkpoint(self))
        except NotFound:
            return Published()
        checkpoint = Checkpoint.from_text(note.text)
        return Published.at(checkpoint, TiledTree(self, checkpoint.size))

    def write(self, files: Iterable[BundleFile]) -> None:
        """Write files in their order, each on disk before the next: a crash leaves the old checkpoint with its tiles,
        or the new one, and perhaps a draft at the top of the folder, which `remove_drafts` removes. Partial tiles are
        deleted after the full tile is written. Raises StoreError.
        """
        try:
            for file in files:
                write_durably(self._folder / file.path, file.data, 0o644, folder_mode=0o755, drafts=self._folder)
                if file.path != CHECKPOINT and TilePath.parse(file.path).width == TILE_WIDTH:
                    shutil.rmtree(self._folder / f"{file.path}.p", ignore_errors=True)
        except OSError as error:
            raise StoreError(f"cannot write tiles to {self._folder}: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class TiledBundle:
    """BundleFiles of the log under one checkpoint, read in place from its tiles.

    Entries are claims, as in a bundle, until their hashes lead to the signed root.
    """

    files: TileFiles
    note: bytes
    checkpoint: Checkpoint

    @classmethod
    def at(cls, files: TileFiles) -> TiledBundle:
        """The log by its newest checkpoint.

        Raises NotFound without a checkpoint, FormatError for a malformed one, or for too many entries.
        """
        note = read_checkpoint(files)
        checkpoint = Checkpoint.from_text(Note.from_bytes(note).text)
        if checkpoint.size > (most := MAX_FILES * TILE_WIDTH):
            raise FormatError(CHECKPOINT, f"is over {checkpoint.size} entries, at most {most} can be read")
        return cls(files, note, checkpoint)

    def numbers(self) -> range:
        """The entry bundles to read."""
        return range(-(-self.checkpoint.size // TILE_WIDTH))

    def paths(self) -> tuple[str, ...]:
        entries = (f"entries/{number * TILE_WIDTH:012d}.jsonl" for number in self.numbers())
        return (MANIFEST, CHECKPOINT, *entries, PROOF)

    def read(self, path: str) -> bytes:
        """Raises the errors of `TiledTree.entries`."""
        size, tree = self.checkpoint.size, TiledTree(self.files, self.checkpoint.size)
        if path == MANIFEST:
            return BundleManifest(self.checkpoint.origin, size, Span(0, size), size, _NO_TIME).to_bytes()
        if path == CHECKPOINT:
            return self.note
        if path == PROOF:  # of all entries
            return b""
        entries = tree.bundle(int(path.removeprefix("entries/").removesuffix(".jsonl")) // TILE_WIDTH)
        if any(b"\n" in entry or not entry for entry in entries):
            raise FormatError(path, "an entry is empty or holds a line break")
        return b"".join(entry + b"\n" for entry in entries)

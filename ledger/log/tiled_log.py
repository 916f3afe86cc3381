"""A log as static files, which any web server can show: C2SP tlog-tiles in a folder or a bucket, behind a journal.

    journal       what a batch waits for: a batch is in the log once its record is there
    tile/…        entry bundles and tiles, made from the journal
    checkpoint    the newest signed head, put down after the tiles that it is over

Here is what the files hold, and how the journal makes them again after a crash. Where they are put, and what is there
for good, is a `Place`: `ledger/log/folder.py`, `ledger/log/bucket.py`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from ledger.bundle.tiles import CHECKPOINT, ENTRIES, TiledTree, TileFiles, entry_bundle, read_entry_bundle, tile_path
from ledger.errors import ChainError, FormatError, NotFound, StoreDamaged, StoreError
from ledger.keys.note import Note
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.merkle import HASH_BYTES, leaf_hash
from ledger.tree.tile import TILE_BYTES, TILE_WIDTH, Tile, TileEdge

_RECORD = struct.Struct(">QII16s")  # first index, bytes of the entries, bytes beside them, checksum over all of it


@dataclass(frozen=True, slots=True)
class Journalled:
    """A batch as the journal has it. `beside` is what others need besides the entries to take it over."""

    start: int
    entries: tuple[bytes, ...]
    beside: bytes = b""

    def to_bytes(self) -> bytes:
        bundle = entry_bundle(self.entries)
        checksum = _checksum(self.start, bundle, self.beside)
        return _RECORD.pack(self.start, len(bundle), len(self.beside), checksum) + bundle + self.beside


def records(data: bytes) -> Iterator[Journalled]:
    """The batches of a journal, up to one that is not whole: nobody was told of that."""
    at = 0
    while at + _RECORD.size <= len(data):
        start, entries, beside, checksum = _RECORD.unpack_from(data, at)
        middle, end = at + _RECORD.size + entries, at + _RECORD.size + entries + beside
        bundle, rest = data[at + _RECORD.size : middle], data[middle:end]
        if end > len(data) or _checksum(start, bundle, rest) != checksum:
            return
        yield Journalled(start, tuple(read_entry_bundle(bundle)), rest)
        at = end


def _checksum(start: int, bundle: bytes, beside: bytes) -> bytes:
    digest = hashlib.sha256(struct.pack(">QII", start, len(bundle), len(beside)))
    digest.update(bundle)
    digest.update(beside)
    return digest.digest()[:16]


class Place(TileFiles, Protocol):
    """Where the files of a log are, and its journal. One thread writes, any reads; every method may raise StoreError.

    A file is whole or not there to whoever reads it. What a crash of the machine may take of files that were `put`, the
    journals still hold.
    """

    name: str
    """For messages."""

    keeps_batches: bool
    """Whether the journals hold every batch until the next `turn`, or the newest one alone."""

    unsure: bool
    """Whether the last `record` may be there although it raised StoreError. Then `journals` tells."""

    @property
    def is_open(self) -> bool:
        """Whether there is a journal to append to: not after `journals`, until `turn`."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether `turn` is due."""
        ...

    def journals(self) -> Sequence[tuple[int, Iterable[Journalled]]]:
        """Give up writing, and say what the journals hold: of each, the entries before it, and its batches.

        Raises StoreLocked where another process has taken the log over.
        """
        ...

    def record(self, batch: Journalled) -> None:
        """Append a batch to the journal, for good. Raises StoreLocked where another process has written."""
        ...

    def turn(self, size: int) -> None:
        """Begin an empty journal behind `size` entries. Those before it go once what they hold is there for good."""
        ...

    def wait(self) -> None:
        """Returns once that has happened."""
        ...

    def put(self, files: Mapping[str, bytes]) -> None:
        """Put files down by their paths, in no order."""
        ...

    def drop(self, path: str, first: int) -> None:
        """Remove the partial forms of a bundle or tile that is full, and begins with entry `first`: at once, or once
        nobody needs them to make files again.
        """
        ...

    def publish(self, note: bytes) -> None:
        """Put down a checkpoint. Raises StoreLocked where another process has."""
        ...

    def close(self) -> None:
        """Let another process write. Closing twice changes nothing."""
        ...


class TiledLog:
    """Made by `open` or `open_for_reading`. One thread writes, any reads. Every method may raise StoreError.

    After a StoreError from `append` nothing has been written, or `behind` is True: then `replay` says what there is.
    """

    def __init__(self, place: Place, size: int = 0) -> None:
        self.size = size
        """The entries that are in the log; of one that reads, at the time when it was opened."""
        self.journalled: tuple[Journalled, ...] = ()
        """The batches that `replay` found; whoever has taken them over calls `settle`."""
        self._place = place
        self._behind = False
        self._tail: list[bytes] = []  # the entries of the last bundle, while it is partial

    @classmethod
    def open(cls, place: Place) -> TiledLog:
        """Open for writing. Raises StoreLocked, StoreDamaged, StoreError."""
        log = cls(place)
        try:
            log.replay()
        except StoreError:
            log.close()
            raise
        return log

    @property
    def name(self) -> str:
        return self._place.name

    @property
    def keeps_batches(self) -> bool:
        """Whether batches can be taken over from the journal until `settle` or `turn`, and not only the newest one."""
        return self._place.keeps_batches

    @property
    def is_open(self) -> bool:
        """Whether there is a journal to append to: not after `replay`, until `settle`."""
        return self._place.is_open

    @property
    def is_full(self) -> bool:
        """Whether `turn` is due."""
        return self._place.is_full

    @property
    def behind(self) -> bool:
        return self._behind or self._place.unsure

    def replay(self) -> None:
        """Make all files again that a crash may have taken, from the journals, as at every start."""
        journals = self._place.journals()
        edge = self._stand_at(journals[0][0] if journals else self._published())
        found: list[Journalled] = []
        for first, batches in journals:
            if first != self.size:  # what lay between is there for good, and its journal gone
                edge = self._stand_at(first)
            for batch in batches:
                if batch.start != self.size:
                    raise StoreDamaged(f"the journal in {self.name} has entry {batch.start} after {self.size} entries")
                edge, tiles = edge.append(leaf_hash(entry) for entry in batch.entries)
                self._show(batch.entries, tiles)
                found.append(batch)
        self.journalled, self._behind = tuple(found), False

    def settle(self) -> None:
        """Begin an empty journal, and remove the others once what was made from them is there for good."""
        self.turn()
        self._place.wait()

    def turn(self) -> None:
        """The same without waiting for it: that happens beside what is written next."""
        self._place.turn(self.size)
        self.journalled = ()

    def append(self, start: int, entries: Sequence[bytes], tiles: Sequence[Tile], beside: bytes = b"") -> None:
        """Append a batch whose first index is `size`, durably, and make its files. None is a write that adds nothing.

        Raises StoreLocked where another process has written, StoreError.
        """
        if self.behind or not self.is_open:
            raise StoreError(f"{self.name} has to be read again before it is written to")
        if start != self.size:
            raise StoreError(f"expected a batch from index {self.size} on, got {start}")
        self._place.record(Journalled(start, tuple(entries), beside))
        self._behind = True  # until all of it is there
        self._show(entries, tiles)
        self._behind = False

    def publish(self, note: bytes) -> None:
        """Put down a signed checkpoint, over entries that have been appended."""
        self._place.publish(note)

    def checkpoint(self) -> bytes | None:
        """The newest one that was put down."""
        try:
            return self._place.read(CHECKPOINT, -1) or None
        except NotFound:
            return None

    def entry(self, index: int) -> bytes:
        """Raises NotFound."""
        found = self.entries(index, 1) if 0 <= index < self.size else ()
        if not found:
            raise NotFound(f"the ledger holds no entry {index}")
        return found[0]

    def entries(self, start: int, limit: int) -> Sequence[bytes]:
        """Up to `limit` entries from `start` on. Raises ChainError for a bundle that is missing or damaged."""
        entries: list[bytes] = []
        try:
            entries.extend(islice(TiledTree(self._place, self.size).entries(start), limit))
        except (FormatError, NotFound) as error:
            raise ChainError(start + len(entries), str(error)) from error
        return entries

    def tile(self, level: int, number: int) -> bytes:
        """Raises NotFound."""
        return TiledTree(self._place, self.size).tile(level, number)

    def close(self) -> None:
        """Let another process write. What no `settle` has seen stays in the journal. Closing twice changes nothing."""
        self._place.close()

    def _show(self, entries: Sequence[bytes], tiles: Sequence[Tile]) -> None:
        number, tail = self.size // TILE_WIDTH, [*self._tail, *entries]
        files, full = dict[str, bytes](), dict[str, int]()
        while len(tail) >= TILE_WIDTH:
            path = tile_path(ENTRIES, number)
            files[path], full[path] = entry_bundle(tail[:TILE_WIDTH]), number * TILE_WIDTH
            tail, number = tail[TILE_WIDTH:], number + 1
        if entries and tail:
            files[tile_path(ENTRIES, number, len(tail))] = entry_bundle(tail)
        for tile in tiles:
            path = tile_path(tile.level, tile.number, len(tile.hashes) // HASH_BYTES)
            files[path] = tile.hashes
            if len(tile.hashes) == TILE_BYTES:
                full[path] = tile.number * TILE_WIDTH ** (tile.level + 1)
        self._place.put(files)
        for path, first in full.items():
            self._place.drop(path, first)
        self.size, self._tail = self.size + len(entries), tail

    def _stand_at(self, size: int) -> TileEdge:
        """Go to where the log had so many entries, by files that are there for good."""
        tree = TiledTree(self._place, size)
        try:
            edge = TileEdge.at(size, tree)
            self._tail = tree.bundle(size // TILE_WIDTH) if size % TILE_WIDTH else []
        except (NotFound, FormatError) as error:
            raise StoreDamaged(f"{self.name} does not hold the first {size} entries: {error}") from error
        self.size = size
        return edge

    def _published(self) -> int:
        """The size of a log that lies here without a journal: a copy of its static files."""
        note = self.checkpoint()
        try:
            return 0 if note is None else Checkpoint.from_text(Note.from_bytes(note).text).size
        except FormatError as error:
            raise StoreDamaged(f"the checkpoint in {self.name}: {error}") from error

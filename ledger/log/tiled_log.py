"""A log as static files, which any web server can show: C2SP tlog-tiles in a folder or a bucket, behind a journal.

    journal       what a batch waits for: a batch is in the log once its record is there
    tile/…        entry bundles and tiles, made from the journal once they are full
    checkpoint    the newest signed head, put down every second after what is partial of the files that it is over

Here is what the files hold, and how the journal makes them again after a crash. Where they are put, and what is there
for good, is a `Place`: `ledger/log/folder.py`, `ledger/log/bucket.py`.
"""

from __future__ import annotations

import logging
import math
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from threading import Lock, Timer
from typing import Protocol

from ledger.bundle.tiles import CHECKPOINT, ENTRIES, TiledTree, TileFiles, entry_bundle, read_entry_bundle, tile_path
from ledger.errors import ChainError, FormatError, NotFound, StoreDamaged, StoreError
from ledger.keys.note import Note
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.merkle import HASH_BYTES, leaf_hash
from ledger.tree.tile import TILE_BYTES, TILE_WIDTH, Tile, TileEdge

SHOWN_SECONDS = 1.0
"""Between two checkpoints that are put down: each takes its partial bundle along, up to half a megabyte."""

_RECORD = struct.Struct(">QIIII")  # first index, bytes of the tail, the entries and beside them, CRC-32 of all that

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Journalled:
    """A batch as the journal has it. `beside` is what others need besides the entries to take it over. `tail` has the
    entries before it that are in no file yet, where no other record holds them.
    """

    start: int
    entries: tuple[bytes, ...]
    beside: bytes = b""
    tail: tuple[bytes, ...] = ()

    def to_bytes(self) -> bytes:
        parts = entry_bundle(self.tail), entry_bundle(self.entries), self.beside
        return b"".join((_RECORD.pack(self.start, *map(len, parts), _checksum(self.start, parts)), *parts))


def records(data: bytes) -> Iterator[Journalled]:
    """The batches of a journal, up to one that is not whole: nobody was told of that."""
    at = 0
    while at + _RECORD.size <= len(data):
        start, *lengths, checksum = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        parts = list[bytes]()
        for length in lengths:
            parts.append(data[at : at + length])
            at += length
        if at > len(data) or _checksum(start, parts) != checksum:
            return
        tail, entries = (tuple(read_entry_bundle(part)) for part in parts[:2])
        yield Journalled(start, entries, parts[2], tail)


def _checksum(start: int, parts: Sequence[bytes]) -> int:
    """Tells a record that is whole from one that a power cut has torn."""
    checksum = zlib.crc32(struct.pack(">QIII", start, *map(len, parts)))
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum


class Place(TileFiles, Protocol):
    """Where the files of a log are, and its journal. One thread writes, any reads; every method may raise StoreError.

    A reader finds a file whole or not at all. What a crash of the machine may take of files that were `put`, the
    journals still hold.
    """

    name: str
    """The place's name in messages."""

    keeps_batches: bool
    """Whether the journals hold every batch until the next `turn`, or the newest one alone."""

    @property
    def unsure(self) -> bool:
        """Whether the last `record` may be there although it raised StoreError. Then `journals` tells."""
        ...

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

    def record(self, batch: bytes) -> bytes:
        """Append a `Journalled` batch to the journal, for good, and read it back. Raises StoreLocked where another
        process has written.
        """
        ...

    def check_held(self) -> None:
        """`store.EntryStore.check_held`, of the journal."""
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


@dataclass(frozen=True, slots=True)
class _Edge:
    """The right edge of a log: the entries of its last bundle, while it is partial, and their hashes."""

    size: int = 0
    tail: tuple[bytes, ...] = ()
    hashes: bytes = b""

    def partial_forms(self, size: int) -> dict[str, bytes]:
        """The files that the tree of `size` entries has in place of a full bundle and a full tile."""
        number, width = divmod(size, TILE_WIDTH)
        if not width or size > self.size or number != self.size // TILE_WIDTH:
            return {}
        return {
            tile_path(ENTRIES, number, width): entry_bundle(self.tail[:width]),
            tile_path(0, number, width): self.hashes[: width * HASH_BYTES],
        }


class TiledLog:
    """Made by `open` or `open_for_reading`. One thread writes, any reads. Every method may raise StoreError.

    After a StoreError from `append` nothing has been written, or `behind` is True: then `replay` says what there is.
    What is read is what the place has given back.
    """

    def __init__(self, place: Place) -> None:
        self.journalled: tuple[Journalled, ...] = ()
        """The batches that `replay` found; the caller that takes them over calls `settle`."""
        self._place = place
        self._behind = False
        self._edge = _Edge()
        self._showing = Lock()  # files are put by the writing thread, and partial ones by a timer
        self._pending: tuple[int, bytes] | None = None
        self._shown_at = -math.inf
        self._timer: Timer | None = None

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

    @classmethod
    def open_for_reading(cls, place: Place) -> TiledLog:
        """The log as its files show it, up to a checkpoint. Raises StoreDamaged."""
        log = cls(place)
        log._stand_at(log._published())
        return log

    @property
    def name(self) -> str:
        return self._place.name

    @property
    def size(self) -> int:
        """The entries that are in the log."""
        return self._edge.size

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

    def check_held(self) -> None:
        """`store.EntryStore.check_held`, of the journal. Raises StoreReplaced."""
        self._place.check_held()

    @property
    def behind(self) -> bool:
        return self._behind or self._place.unsure

    def replay(self) -> None:
        """Make all files again that a crash may have taken, from the journals, as at every start."""
        with self._showing:
            self._pending = None  # the log's follower puts the newest checkpoint down again
        journals = self._place.journals()
        edge = self._stand_at(journals[0][0] if journals else self._published())
        found: list[Journalled] = []
        for first, batches in journals:
            if first != self.size:  # what lay between is there for good, and its journal gone
                edge = self._stand_at(first)
            for batch in batches:
                if batch.start - len(batch.tail) != self.size:
                    raise StoreDamaged(f"the journal in {self.name} has entry {batch.start} after {self.size} entries")
                entries = (*batch.tail, *batch.entries)
                edge, tiles = edge.append(leaf_hash(entry) for entry in entries)
                self._take(entries, tiles)
                found.append(batch)
        self.journalled, self._behind = tuple(found), False

    def settle(self) -> None:
        """Begin an empty journal, and remove the others once what was made from them is there for good."""
        self.turn()
        self._place.wait()

    def turn(self) -> None:
        """The same without waiting for it: that happens beside what is written next."""
        self._show()
        with self._showing:
            self._place.put(self._edge.partial_forms(self.size))
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
        tail = () if self.keeps_batches else self._edge.tail
        data = Journalled(start, tuple(entries), beside, tail).to_bytes()
        there = self._place.record(data)
        self._behind = True  # until all of it is there
        if there != data:
            raise ChainError(start, f"the journal in {self.name} gave back other bytes than were written")
        self._take(entries, tiles)
        self._behind = False

    def publish(self, size: int, note: bytes) -> None:
        """Put down a signed checkpoint over the first `size` entries, now or within SHOWN_SECONDS."""
        self._pending = size, note
        patience = self._shown_at + SHOWN_SECONDS - time.monotonic()
        if patience <= 0:
            self._show()
        elif self._timer is None:
            self._timer = Timer(patience, self._show_later)
            self._timer.daemon = True
            self._timer.start()

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
        """At most `limit` entries from `start` on. Raises ChainError for a bundle that is missing or damaged."""
        edge, entries = self._edge, list[bytes]()
        full = edge.size - len(edge.tail)
        try:
            entries.extend(islice(TiledTree(self._place, full).entries(start), limit))
        except (FormatError, NotFound) as error:
            raise ChainError(start + len(entries), str(error)) from error
        return [*entries, *edge.tail[max(0, start - full) :]][:limit]

    def tile(self, level: int, number: int) -> bytes:
        """Raises NotFound."""
        edge = self._edge
        if level == 0 and edge.tail and number == edge.size // TILE_WIDTH:
            return edge.hashes
        return TiledTree(self._place, edge.size).tile(level, number)

    def close(self) -> None:
        """Let another process write. What no `settle` has seen stays in the journal. Closing twice changes nothing."""
        if self._timer is not None:
            self._timer.cancel()
        with self._showing:
            self._pending = None
            self._place.close()

    def _take(self, entries: Sequence[bytes], tiles: Sequence[Tile]) -> None:
        """Put down what is full with these, and the tiles above that; the rest waits in memory for a checkpoint."""
        size, tail, hashes = self.size + len(entries), (*self._edge.tail, *entries), self._edge.hashes
        number, files, full = self.size // TILE_WIDTH, dict[str, bytes](), dict[str, int]()
        while len(tail) >= TILE_WIDTH:
            path = tile_path(ENTRIES, number)
            files[path], full[path] = entry_bundle(tail[:TILE_WIDTH]), number * TILE_WIDTH
            tail, number = tail[TILE_WIDTH:], number + 1
        for tile in tiles:
            if tile.level == 0 and len(tile.hashes) < TILE_BYTES:
                hashes = tile.hashes
                continue
            path = tile_path(tile.level, tile.number, len(tile.hashes) // HASH_BYTES)
            files[path] = tile.hashes
            if len(tile.hashes) == TILE_BYTES:
                full[path] = tile.number * TILE_WIDTH ** (tile.level + 1)
        with self._showing:
            self._place.put(files)
            for path, first in full.items():
                self._place.drop(path, first)
            self._edge = _Edge(size, tail, hashes)

    def _show(self) -> None:
        """Put down the checkpoint that waits, after what is partial of its files."""
        with self._showing:
            if self._pending is not None:
                size, note = self._pending
                self._place.put(self._edge.partial_forms(size))
                self._place.publish(note)
                self._shown_at = time.monotonic()
                if self._pending == (size, note):
                    self._pending = None

    def _show_later(self) -> None:
        self._timer = None
        try:
            self._show()
        except StoreError as error:  # the next checkpoint takes its place, or a write finds out why
            _log.warning("a checkpoint is not shown yet: %s", error)

    def _stand_at(self, size: int) -> TileEdge:
        """Go to where the log had `size` entries, by files that are there for good."""
        tree = TiledTree(self._place, size)
        try:
            edge = TileEdge.at(size, tree)
            tail = tree.bundle(size // TILE_WIDTH) if size % TILE_WIDTH else []
        except (NotFound, FormatError) as error:
            raise StoreDamaged(f"{self.name} does not hold the first {size} entries: {error}") from error
        self._edge = _Edge(size, tuple(tail), edge.partial[0] if edge.partial else b"")
        return edge

    def _published(self) -> int:
        """The size of a log that lies here without a journal: a copy of its static files."""
        note = self.checkpoint()
        try:
            return 0 if note is None else Checkpoint.from_text(Note.from_bytes(note).text).size
        except FormatError as error:
            raise StoreDamaged(f"the checkpoint in {self.name}: {error}") from error

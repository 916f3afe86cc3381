"""A log in a folder of static files, which any web server can show: C2SP tlog-tiles, and a journal in front of them.

    journal-<index>   the batches from that entry on, one behind the other; the only file that a batch waits for
    tile/…            entry bundles and tiles, made from the journal; they reach the disk before it is removed
    checkpoint        the newest signed head, put down after the tiles that it is over

A batch is in the log once its record is on the disk: one `fdatasync`. Each file is whole or not there to whoever reads
it now. A power cut may leave any that no `fsync` has seen empty; `replay` makes them again from the journal, which
holds all that was written since. So a partial bundle that the journal cannot make again is kept until the full one is
on the disk.

One process writes: it holds a lock, and where locks do not work, it sees that the journal has grown without it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Self

from ledger.bundle.tiles import CHECKPOINT, ENTRIES, entry_bundle, read_entry_bundle, tile_path
from ledger.durable_file import sync_path
from ledger.errors import ChainError, FormatError, NotFound, StoreDamaged, StoreError, StoreLocked
from ledger.keys.note import Note
from ledger.log.writer_lock import WriterLock
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.merkle import HASH_BYTES, leaf_hash
from ledger.tree.tile import TILE_BYTES, TILE_WIDTH, Tile, TileEdge

JOURNAL_BYTES = 64 * 2**20
"""A journal of this size is closed. Then a thread brings the files that were made from it to the disk."""

_RECORD = struct.Struct(">QII16s")  # first index, bytes of the entries, bytes beside them, checksum over all of it
_DRAFT = ".draft"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Journalled:
    """A batch as the journal has it. `beside` is what others need besides the entries to take it over."""

    start: int
    entries: tuple[bytes, ...]
    beside: bytes


class FolderLog:
    """Made by `open` or `open_for_reading`. One thread writes, any reads. Every method may raise StoreError.

    After a StoreError from `append` nothing has been written, or `behind` is True: then `replay` says what there is.
    """

    def __init__(self, folder: Path, lock: WriterLock | None = None) -> None:
        self.folder = folder
        self.behind = False
        self.journalled: tuple[Journalled, ...] = ()
        """The batches that `replay` found; whoever has taken them over calls `settle`."""
        self._lock = lock
        self.size = 0
        """The entries that are in the log, of the one that writes."""
        self._tail: list[bytes] = []  # the entries of the last bundle, while it is partial
        self._era = 0  # the first entry that the journals hold
        self._journals: list[Path] = []
        self._descriptor = -1
        self._end = 0
        self._written: set[Path] = set()  # files that no fsync has seen
        self._settling: Thread | None = None

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open for writing; the folder is made where missing. Raises StoreLocked, StoreDamaged, StoreError."""
        with _store_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            log = cls(folder, WriterLock(folder / "journal"))
        try:
            log.replay()
        except StoreError:
            log.close()
            raise
        return log

    @classmethod
    def open_for_reading(cls, folder: Path) -> Self:
        """Open without the right to write, beside a running writer too. Raises NotFound where there is no log."""
        if not folder.is_dir():
            raise NotFound(f"there is no log in {folder}")
        return cls(folder)

    @property
    def is_open(self) -> bool:
        """Whether there is a journal to append to: not after `replay`, until `settle`."""
        return self._descriptor >= 0

    @property
    def is_full(self) -> bool:
        """Whether `turn` is due."""
        return self._end >= JOURNAL_BYTES

    def replay(self) -> None:
        """Make all files again that a crash may have taken, from the journals, as at every start."""
        with _store_errors(self.folder):
            self._wait()
            self._close_journal()
            self._journals = sorted(self.folder.glob("journal-*"))
            self._era = _first(self._journals[0]) if self._journals else self._shown()
            edge = self._stand_at(self._era)
            found: list[Journalled] = []
            for journal in self._journals:
                if _first(journal) != self.size:  # what lay between is on the disk, and its journal gone
                    edge = self._stand_at(_first(journal))
                for record in _records(journal):
                    if record.start != self.size:
                        raise StoreDamaged(f"{journal} has entry {record.start} where {self.size} should be")
                    edge, tiles = edge.append(leaf_hash(entry) for entry in record.entries)
                    self._show(record.entries, tiles)
                    found.append(record)
            self.journalled, self.behind = tuple(found), False

    def settle(self) -> None:
        """Begin an empty journal, and remove the others once what was made from them is on the disk."""
        self.turn()
        with _store_errors(self.folder):
            self._wait()

    def turn(self) -> None:
        """The same without waiting for it: the files are brought to the disk beside what is written next."""
        with _store_errors(self.folder):
            self._wait()
            self._close_journal()
            old, written, era, full = self._journals, self._written, self._era, self.size - self.size % TILE_WIDTH
            self._begin()
            self.journalled = ()
            self._settling = Thread(target=self._forget, args=(old, written, era, full), name="log-folder")
            self._settling.start()

    def append(self, start: int, entries: Sequence[bytes], tiles: Sequence[Tile], beside: bytes = b"") -> None:
        """Append a batch whose first index is `size`, durably, and make its files. None is a write that adds nothing.

        Raises StoreLocked where another process has written, StoreError.
        """
        if self.behind or self._descriptor < 0:
            raise StoreError(f"{self.folder} has to be read again before it is written to")
        if start != self.size:
            raise StoreError(f"expected a batch from index {self.size} on, got {start}")
        with _store_errors(self.folder):
            self._record(Journalled(start, tuple(entries), beside))
            self.behind = True  # until all of it is there
            self._show(entries, tiles)
            self.behind = False

    def publish(self, note: bytes) -> None:
        """Put down a signed checkpoint, over entries that have been appended."""
        with _store_errors(self.folder):
            self._put(CHECKPOINT, note)

    def checkpoint(self) -> bytes | None:
        """The newest one that was put down."""
        with _store_errors(self.folder):
            try:
                return (self.folder / CHECKPOINT).read_bytes() or None
            except FileNotFoundError:
                return None

    def entry(self, index: int) -> bytes:
        """Raises NotFound."""
        found = self.entries(index, 1) if index >= 0 else ()
        if not found:
            raise NotFound(f"the ledger holds no entry {index}")
        return found[0]

    def entries(self, start: int, limit: int) -> Sequence[bytes]:
        """Up to `limit` entries from `start` on. Raises ChainError for a bundle that is damaged."""
        entries: list[bytes] = []
        while len(entries) < limit:
            number, skipped = divmod(start + len(entries), TILE_WIDTH)
            try:
                some = read_entry_bundle(self._read(ENTRIES, number))[skipped:]
            except NotFound:
                break
            except FormatError as error:
                raise ChainError(start + len(entries), str(error)) from error
            entries += some
            if not some or skipped + len(some) < TILE_WIDTH:
                break
        return entries[:limit]

    def tile(self, level: int, number: int) -> bytes:
        """Raises NotFound."""
        return self._read(level, number)

    def close(self) -> None:
        """Release the lock. What no `settle` has seen stays in the journal. Closing twice changes nothing."""
        if self._lock is not None:
            self._close_journal()
            self._wait()
            self._lock.release()
            self._lock = None

    def _record(self, batch: Journalled) -> None:
        bundle = entry_bundle(batch.entries)
        head = _RECORD.pack(batch.start, len(bundle), len(batch.beside), _checksum(batch.start, bundle, batch.beside))
        there = os.stat(self._journals[-1])
        if there.st_size != self._end or there.st_ino != os.fstat(self._descriptor).st_ino:
            raise StoreLocked(f"another process writes to the log in {self.folder}; run one ledger service for a log")
        try:
            data = memoryview(head + bundle + batch.beside)
            while data:
                data = data[os.write(self._descriptor, data) :]
            os.fdatasync(self._descriptor)
        except OSError:
            self.behind = True  # a record that is half there, or not on the disk, is none
            os.ftruncate(self._descriptor, self._end)
            os.fsync(self._descriptor)
            self.behind = False
            raise
        self._end += len(head) + len(bundle) + len(batch.beside)

    def _show(self, entries: Sequence[bytes], tiles: Sequence[Tile]) -> None:
        number = self.size // TILE_WIDTH
        self.size += len(entries)
        for entry in entries:
            self._tail.append(entry)
            if len(self._tail) == TILE_WIDTH:
                self._put(tile_path(ENTRIES, number), entry_bundle(self._tail))
                self._drop_partial(ENTRIES, number)
                self._tail, number = [], number + 1
        if entries and self._tail:
            self._put(tile_path(ENTRIES, number, len(self._tail)), entry_bundle(self._tail))
        for tile in tiles:
            self._put(tile_path(tile.level, tile.number, len(tile.hashes) // HASH_BYTES), tile.hashes)
            if tile.level == 0 and len(tile.hashes) == TILE_BYTES:
                self._drop_partial(0, tile.number)

    def _drop_partial(self, level: int | str, number: int) -> None:
        """The partial bundles of one that is full, if the journals hold its first entry; others wait for `_forget`."""
        if number * TILE_WIDTH >= self._era:
            shutil.rmtree(self.folder / (tile_path(level, number) + ".p"), ignore_errors=True)

    def _put(self, path: str, data: bytes) -> None:
        target = self.folder / path
        draft = target.with_name(_DRAFT)
        try:
            draft.write_bytes(data)
        except FileNotFoundError:
            target.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(data)
        os.replace(draft, target)
        self._written.add(target)

    def _read(self, level: int | str, number: int) -> bytes:
        """A bundle or tile, as much as there is of it by now."""
        with _store_errors(self.folder):
            for _ in range(2):  # the partial ones go when the full one has come
                with suppress(FileNotFoundError):
                    return (self.folder / tile_path(level, number)).read_bytes()
                with suppress(FileNotFoundError):
                    partial = self.folder / (tile_path(level, number) + ".p")
                    widths = [int(name) for name in os.listdir(partial) if name.isdecimal()]
                    if widths:
                        return (partial / str(max(widths))).read_bytes()
        raise NotFound(f"the ledger holds no tile {level}/{number}")

    def _stand_at(self, size: int) -> TileEdge:
        """Go to where the log had so many entries, by files that have reached the disk."""
        number, width = divmod(size, TILE_WIDTH)
        exact = _Exact(self, size)
        try:
            edge = TileEdge.at(size, exact)
            self._tail = read_entry_bundle(exact.read(ENTRIES, number, width))[:width] if width else []
        except (NotFound, FormatError) as error:
            raise StoreDamaged(f"{self.folder} does not hold the first {size} entries: {error}") from error
        if len(self._tail) < width:
            raise StoreDamaged(f"{self.folder} does not hold the first {size} entries")
        self.size = size
        return edge

    def _shown(self) -> int:
        """The size of a log that lies here without a journal: a copy of its static files."""
        note = self.checkpoint()
        try:
            return 0 if note is None else Checkpoint.from_text(Note.from_bytes(note).text).size
        except FormatError as error:
            raise StoreDamaged(f"{self.folder / CHECKPOINT}: {error}") from error

    def _begin(self) -> None:
        journal = self.folder / f"journal-{self.size:016d}"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._journals = [journal]
        self._descriptor = os.open(journal, flags, 0o600)
        os.ftruncate(self._descriptor, 0)  # of one that is there by this name, and so without a whole batch
        self._end = 0
        self._era, self._written = self.size, set()
        sync_path(self.folder)

    def _close_journal(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _wait(self) -> None:
        if self._settling is not None:
            self._settling.join()
            self._settling = None

    def _forget(self, journals: Sequence[Path], written: set[Path], era: int, full: int) -> None:
        """Remove journals, and partial bundles older than them, once what they say is on the disk."""
        try:
            there = [path for path in sorted(written) if path.exists()]
            for path in there:
                sync_path(path)
            folders = {folder for path in there for folder in path.parents if self.folder in (folder, *folder.parents)}
            for folder in folders:
                sync_path(folder)
            for level, number in _completed(era, full):
                shutil.rmtree(self.folder / (tile_path(level, number) + ".p"), ignore_errors=True)
            for journal in journals:
                if journal not in self._journals:  # one without a batch is the next one's, too
                    journal.unlink(missing_ok=True)
            sync_path(self.folder)
        except OSError as error:  # the journals stay, and are read at the next start
            _log.warning("%s: files of the log are not on the disk yet: %s", self.folder, error)


def _completed(era: int, full: int) -> Iterator[tuple[int | str, int]]:
    """Bundles and tiles that were partial when the log had `era` entries, and are full with `full`."""
    if era // TILE_WIDTH < full // TILE_WIDTH:
        yield ENTRIES, era // TILE_WIDTH
    level = 0
    while width := TILE_WIDTH ** (level + 1):
        if full < width:
            return
        for number in range(era // width, full // width):
            yield level, number
        level += 1


class _Exact:
    """Tiles with the width that a tree of `size` leaves has, or full: those alone have reached the disk."""

    def __init__(self, log: FolderLog, size: int) -> None:
        self._log = log
        self._size = size

    def tile(self, level: int, number: int) -> bytes:
        return self.read(level, number, (self._size >> (8 * level)) % TILE_WIDTH)

    def read(self, level: int | str, number: int, width: int) -> bytes:
        for path in (tile_path(level, number, width), tile_path(level, number)):
            with suppress(FileNotFoundError):
                return (self._log.folder / path).read_bytes()
        raise NotFound(f"{tile_path(level, number, width)} is missing")


def _first(journal: Path) -> int:
    return int(journal.name.removeprefix("journal-"))


def _checksum(start: int, bundle: bytes, beside: bytes) -> bytes:
    return hashlib.sha256(struct.pack(">QII", start, len(bundle), len(beside)) + bundle + beside).digest()[:16]


def _records(journal: Path) -> Iterator[Journalled]:
    """The batches of a journal, up to one that is not whole: nobody was told of that."""
    data = journal.read_bytes()
    at = 0
    while at + _RECORD.size <= len(data):
        start, entries, beside, checksum = _RECORD.unpack_from(data, at)
        middle, end = at + _RECORD.size + entries, at + _RECORD.size + entries + beside
        bundle, rest = data[at + _RECORD.size : middle], data[middle:end]
        if end > len(data) or _checksum(start, bundle, rest) != checksum:
            return
        yield Journalled(start, tuple(read_entry_bundle(bundle)), rest)
        at = end


@contextmanager
def _store_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"the log in {folder} failed: {error.strerror or error}") from error

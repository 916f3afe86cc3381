"""A log's files in a folder, and journals in front of them.

    journal-<index>   the batches from that entry on, one behind the other; the only file that a batch waits for

A batch is in the log once its record is on the disk: one `fdatasync`. A power cut may leave any file empty that no
`fsync` has seen; the journal, which holds all that was written since, makes it again. So a partial bundle that the
journal cannot make again is kept until the full one is on the disk.

One process writes: it holds a lock, and where locks do not work, it sees that the journal has grown without it.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from ledger.bundle.tiles import CHECKPOINT, TileFolder
from ledger.durable_file import sync_path
from ledger.errors import NotFound, StoreError, StoreLocked, StoreReplaced
from ledger.log.tiled_log import Journalled, records
from ledger.log.writer_lock import WriterLock

JOURNAL_BYTES = 64 * 2**20
"""A journal of this size is closed. Then a thread brings the files that were made from it to the disk."""

_DRAFT = ".draft"

_log = logging.getLogger(__name__)


class Folder:
    """`tiled_log.Place`. Made by `open` or `open_for_reading`."""

    keeps_batches = True

    def __init__(self, path: Path, lock: WriterLock | None = None) -> None:
        self.name = str(path)
        self.unsure = False
        self._path = path
        self._files = TileFolder(path)
        self._lock = lock
        self._era = 0  # the first entry that the journals hold
        self._journals: list[Path] = []
        self._descriptor = -1
        self._end = 0
        self._written: set[Path] = set()  # files that no fsync has seen
        self._late: list[Path] = []  # partial ones to remove once those are on the disk
        self._settling: Thread | None = None

    @classmethod
    def open(cls, path: Path) -> Folder:
        """Open for writing; the folder is made where missing. Raises StoreLocked, StoreError."""
        with _store_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            return cls(path, WriterLock(path / "journal"))

    @classmethod
    def open_for_reading(cls, path: Path) -> Folder:
        """Open without the right to write, beside a running writer too. Raises NotFound where there is no log."""
        if not path.is_dir():
            raise NotFound(f"there is no log in {path}")
        return cls(path)

    @property
    def is_open(self) -> bool:
        return self._descriptor >= 0

    @property
    def is_full(self) -> bool:
        return self._end >= JOURNAL_BYTES

    def journals(self) -> Sequence[tuple[int, Iterable[Journalled]]]:
        with _store_errors(self._path):
            self.wait()
            self._close_journal()
            self.unsure = False
            self._journals = sorted(self._path.glob("journal-*"))
            self._era = _first(self._journals[0]) if self._journals else 0
            return [(_first(journal), records(journal.read_bytes())) for journal in self._journals]

    def record(self, batch: bytes) -> bytes:
        with _store_errors(self._path):
            self.check_held()
            if os.fstat(self._descriptor).st_size != self._end:
                raise StoreLocked(f"another process writes to the log in {self.name}; run one ledger service for a log")
            data, length = memoryview(batch), len(batch)
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
                os.fdatasync(self._descriptor)
            except OSError:
                self.unsure = True  # a record that is half there, or not on the disk, does not count
                os.ftruncate(self._descriptor, self._end)
                os.fsync(self._descriptor)
                self.unsure = False
                raise
            self._end += length
            return os.pread(self._descriptor, length, self._end - length)

    def check_held(self) -> None:
        if self.is_open:
            opened, path = os.fstat(self._descriptor), self._journals[-1]
            try:
                there = os.stat(path)
            except FileNotFoundError:
                there = None
            if there is None or (there.st_dev, there.st_ino) != (opened.st_dev, opened.st_ino):
                raise StoreReplaced(str(path), [f"/proc/{os.getpid()}/fd/{self._descriptor}"])

    def turn(self, size: int) -> None:
        with _store_errors(self._path):
            self.wait()
            self._close_journal()
            old, written, late = self._journals, self._written, self._late
            journal = self._path / f"journal-{size:016d}"
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._journals = [journal]
            self._descriptor = os.open(journal, flags, 0o600)
            os.ftruncate(self._descriptor, 0)  # of one that is there by this name, and so without a whole batch
            self._end = 0
            self._era, self._written, self._late = size, set(), []
            sync_path(self._path)
            self._settling = Thread(target=self._forget, args=(old, written, late), name="log-folder")
            self._settling.start()

    def wait(self) -> None:
        if self._settling is not None:
            self._settling.join()
            self._settling = None

    def read(self, path: str, most: int) -> bytes:
        return self._files.read(path, most)

    def put(self, files: Mapping[str, bytes]) -> None:
        with _store_errors(self._path):
            for path, data in files.items():
                target = self._path / path
                draft = target.with_name(_DRAFT)
                try:
                    draft.write_bytes(data)
                except FileNotFoundError:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    draft.write_bytes(data)
                os.replace(draft, target)
                self._written.add(target)

    def drop(self, path: str, first: int) -> None:
        partial = self._path / f"{path}.p"
        if first >= self._era:
            shutil.rmtree(partial, ignore_errors=True)
        else:
            self._late.append(partial)

    def publish(self, note: bytes) -> None:
        self.put({CHECKPOINT: note})

    def close(self) -> None:
        if self._lock is not None:
            self._close_journal()
            self.wait()
            self._lock.release()
            self._lock = None

    def _close_journal(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _forget(self, journals: Sequence[Path], written: set[Path], late: Sequence[Path]) -> None:
        """Remove journals, and partial bundles older than them, once what they say is on the disk."""
        try:
            there = [path for path in sorted(written) if path.exists()]
            for path in there:
                sync_path(path)
            folders = {folder for path in there for folder in path.parents if self._path in (folder, *folder.parents)}
            for folder in folders:
                sync_path(folder)
            for partial in late:
                shutil.rmtree(partial, ignore_errors=True)
            for journal in journals:
                if journal not in self._journals:  # one without a batch is the next one's, too
                    journal.unlink(missing_ok=True)
            sync_path(self._path)
        except OSError as error:  # the journals stay, and are read at the next start
            _log.warning("%s: files of the log are not on the disk yet: %s", self.name, error)


def _first(journal: Path) -> int:
    return int(journal.name.removeprefix("journal-"))


@contextmanager
def _store_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"the log in {folder} failed: {error.strerror or error}") from error

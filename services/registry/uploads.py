"""Unfinished uploads: the bytes of a blob so far, in a folder of its own, until all are there and verified.

    <folder>/<64 hex digits>-<size>-<16 hex digits>.part     bytes 0 to committed size of a blob: its SHA-256, its
                                                             declared size, and the digest of its uploader's name

A part file is not yet a blob. It survives a cut connection and a killed process, the next upload goes on at its end;
damage by a power cut shows when the digest is compared. Nobody goes on with, ends or deletes what another uploads.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from ledger.encoding.text_forms import parse_digest
from services.registry.blobs import BlobStore
from services.registry.errors import DiskFull, UploadTakenOver
from services.runtime.errors import FailedPrecondition, InvalidArgument, Unavailable

_log = logging.getLogger(__name__)

_READ_BYTES = 1024 * 1024
_SECONDS_A_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Part:
    """An upload's blob and owner: the digest, the declared size in bytes, the uploader's name."""

    digest: str
    size: int
    owner: str = ""

    @property
    def file_name(self) -> str:
        owner = hashlib.sha256(self.owner.encode()).hexdigest()[:16]
        return f"{parse_digest(self.digest).hex()}-{self.size}-{owner}.part"


class Upload:
    """One upload of one blob. One thread at a time writes; `supersede` comes from any."""

    def __init__(self, folder: Path, part: Part, before: Upload | None, reserve: int = 0) -> None:
        """`before` is another upload of the same part, which has to end before this one begins. `reserve` is how many
        bytes of the disk have to stay free.
        """
        self.part = part
        self._path = folder / part.file_name
        self._before = before
        self._reserve = reserve
        self._lock = threading.Lock()
        self._superseded = False
        self._sha256 = hashlib.sha256()
        self._committed = 0

    @property
    def complete(self) -> bool:
        return self._committed == self.part.size

    @property
    def to_come(self) -> int:
        """Bytes that it will still take of the disk."""
        return self.part.size - self._committed

    def begin(self, offset: int) -> None:
        """Wait for the upload before this one, then read what is there.

        Raises FailedPrecondition where it ends elsewhere than at `offset`, DiskFull, UploadTakenOver.
        """
        with self._lock:
            self._end_before()
            self._check_current()
            try:
                self._read()
            except OSError as error:
                raise _failed(error) from error
            if self._committed != offset:
                problem = f"offset {offset} is not where this upload goes on; {self._committed} bytes are here"
                known = {"committed_size": str(self._committed)}
                raise FailedPrecondition(problem, reason="OFFSET_MISMATCH", metadata=known)

    def _read(self) -> None:
        with self._path.open("ab"):  # there from the first byte on
            pass
        with self._path.open("rb") as file:
            while chunk := file.read(_READ_BYTES):
                self._sha256.update(chunk)
                self._committed += len(chunk)

    def write(self, data: bytes) -> None:
        """Add bytes. Raises InvalidArgument, DiskFull, UploadTakenOver."""
        with self._lock:
            self._check_current()
            if self._committed + len(data) > self.part.size:
                raise _too_large(self._committed + len(data), self.part.size)
            if _free(self._path.parent) - len(data) < self._reserve:  # somebody else has filled it meanwhile
                raise DiskFull()
            try:
                with self._path.open("ab") as file:
                    file.write(data)
            except OSError as error:
                raise _failed(error) from error
            self._sha256.update(data)
            self._committed += len(data)

    def finish(self, blobs: BlobStore) -> None:
        """All bytes are there: make the blob visible.

        Raises InvalidArgument, UploadTakenOver, and what `BlobStore.put` raises.
        """
        with self._lock:
            self._check_current()
            found = "sha256:" + self._sha256.hexdigest()
            if found != self.part.digest:
                self._path.unlink(missing_ok=True)
                problem = (
                    f"the bytes that were sent are {found}, not {self.part.digest}; upload it again from its start"
                )
                raise InvalidArgument("blob.digest", problem, reason="DIGEST_MISMATCH")
            blobs.put(self.part.digest, self._path)
            self._path.unlink(missing_ok=True)

    def supersede(self) -> None:
        """Another one goes on from here; returns when neither this one nor any before it will write any more."""
        with self._lock:
            self._end_before()
            self._superseded = True

    def _end_before(self) -> None:
        if self._before is not None:
            self._before.supersede()
            self._before = None

    def _check_current(self) -> None:
        if self._superseded:
            raise UploadTakenOver()


class Uploads:
    """The folder of part files. One process; from any thread."""

    def __init__(self, folder: Path, most_bytes: int, reserve: int = 0) -> None:
        """`reserve` bytes of the folder's disk stay free. Raises OSError where the folder cannot be made."""
        self._folder = folder
        self._most_bytes = most_bytes
        self._reserve = reserve
        self._current: dict[Part, Upload] = {}
        self._lock = threading.Lock()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def committed(self, part: Part) -> int:
        """Bytes that an upload of this part has left; 0 without one."""
        try:
            return (self._folder / part.file_name).stat().st_size
        except FileNotFoundError:
            return 0

    def begin(self, part: Part, offset: int) -> Upload:
        """An upload that goes on at `offset`. Another one of the same part ends here. `end` has to follow.

        The disk must have room for the declared bytes of all uploads. Raises KolmError;
        then nothing has been written.
        """
        if part.size > self._most_bytes:
            raise _too_large(part.size, self._most_bytes)
        with self._lock:
            others = sum(upload.to_come for each, upload in self._current.items() if each != part)
            if _free(self._folder) - others - (part.size - min(offset, part.size)) < self._reserve:
                raise DiskFull()
            upload = Upload(self._folder, part, self._current.get(part), self._reserve)
            self._current[part] = upload
        try:
            upload.begin(offset)
        except BaseException:
            self.end(upload)
            raise
        return upload

    def end(self, upload: Upload) -> None:
        """Whether it came to its end or not. Waits for what a caller that was cancelled has left running."""
        upload.supersede()
        with self._lock:
            if self._current.get(upload.part) is upload:
                del self._current[upload.part]

    def forget_older_than(self, days: float) -> None:
        """Remove part files that nobody has added to for so long, and nobody is about to."""
        with self._lock:
            current = {self._folder / part.file_name for part in self._current}
            for path in self._folder.glob("*.part"):
                if path not in current and time.time() - path.stat().st_mtime > days * _SECONDS_A_DAY:
                    _log.info("an upload was given up: %s", path.name)
                    path.unlink()


def _too_large(size: int, most: int) -> InvalidArgument:
    problem = f"is {size:,} bytes; this registry takes at most {most:,}"
    return InvalidArgument("blob.size", problem, reason="BLOB_TOO_LARGE")


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _failed(error: OSError) -> DiskFull | Unavailable:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFull()
    _log.error("cannot keep an upload: %s", error)
    return Unavailable("the registry cannot keep uploads for the moment", reason="UPLOADS_UNAVAILABLE")

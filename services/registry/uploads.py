"""Unfinished uploads: the bytes of a blob so far, in a folder for part files, until the blob is complete and verified.

    <folder>/<64 hex digits>-<size>-<16 hex digits>.part     bytes 0 to committed size of a blob: its SHA-256, its
                                                             declared size, and the digest of its uploader's name

A part file is not yet a blob. It survives a cut connection and a killed process, and the next upload continues at its
end; damage by a power cut is found when the digest is compared. Uploaders cannot continue, end or delete each other's
uploads.
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
    """One upload of one blob. One thread at a time writes; any thread may call `supersede`."""

    def __init__(self, folder: Path, part: Part, before: Upload | None, reserve: int = 0) -> None:
        """`before` is another upload of the same part, which has to end before this one begins. `reserve` bytes of the
        disk have to stay free.
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
        """Bytes of the disk that it still needs."""
        return self.part.size - self._committed

    def begin(self, offset: int) -> None:
        """Wait for the upload before this one, then read the bytes so far.

        Raises FailedPrecondition if they do not end at `offset`, DiskFull, UploadTakenOver.
        """
        with self._lock:
            self._end_before()
            self._check_current()
            try:
                self._read()
            except OSError as error:
                raise _failed(error) from error
            if self._committed != offset:
                problem = f"expected offset {self._committed}, the number of bytes received; got {offset}"
                known = {"committed_size": str(self._committed)}
                raise FailedPrecondition(problem, reason="OFFSET_MISMATCH", metadata=known)

    def _read(self) -> None:
        with self._path.open("ab"):  # the file exists before the first byte
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
            if _free(self._path.parent) - len(data) < self._reserve:  # filled by other writers meanwhile
                raise DiskFull()
            try:
                with self._path.open("ab") as file:
                    file.write(data)
            except OSError as error:
                raise _failed(error) from error
            self._sha256.update(data)
            self._committed += len(data)

    def finish(self, blobs: BlobStore) -> None:
        """Make the complete blob visible.

        Raises InvalidArgument, UploadTakenOver, and the errors of `BlobStore.put`.
        """
        with self._lock:
            self._check_current()
            found = "sha256:" + self._sha256.hexdigest()
            if found != self.part.digest:
                self._path.unlink(missing_ok=True)
                problem = f"expected {self.part.digest}, got bytes of {found}; upload the blob again from its start"
                raise InvalidArgument("blob.digest", problem, reason="DIGEST_MISMATCH")
            blobs.put(self.part.digest, self._path)
            self._path.unlink(missing_ok=True)

    def supersede(self) -> None:
        """End this upload in favour of another; returns when neither this one nor any before it will write any more."""
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
    """The folder of part files. For one process, and any of its threads."""

    def __init__(self, folder: Path, most_bytes: int, reserve: int = 0) -> None:
        """`reserve` bytes of the folder's disk stay free. Raises OSError if the folder cannot be made."""
        self._folder = folder
        self._most_bytes = most_bytes
        self._reserve = reserve
        self._current: dict[Part, Upload] = {}
        self._lock = threading.Lock()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def committed(self, part: Part) -> int:
        """The number of bytes that uploads of this part have left so far."""
        try:
            return (self._folder / part.file_name).stat().st_size
        except FileNotFoundError:
            return 0

    def begin(self, part: Part, offset: int) -> Upload:
        """An upload that continues at `offset`; another upload of the same part ends. `end` has to follow.

        The disk must have room for the declared bytes of all uploads. Raises KolmError; then nothing was written.
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
        """End an upload, finished or not. Waits for the thread of a cancelled caller."""
        upload.supersede()
        with self._lock:
            if self._current.get(upload.part) is upload:
                del self._current[upload.part]

    def forget_older_than(self, days: float) -> None:
        """Delete part files without additions for this long and without a running upload."""
        with self._lock:
            current = {self._folder / part.file_name for part in self._current}
            for path in self._folder.glob("*.part"):
                if path not in current and time.time() - path.stat().st_mtime > days * _SECONDS_A_DAY:
                    _log.info("deleting an abandoned upload: %s", path.name)
                    path.unlink()


def _too_large(size: int, most: int) -> InvalidArgument:
    problem = f"is {size:,} bytes; this registry takes at most {most:,}"
    return InvalidArgument("blob.size", problem, reason="BLOB_TOO_LARGE")


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _failed(error: OSError) -> DiskFull | Unavailable:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFull()
    _log.error("failing to write an upload: %s", error)
    return Unavailable("the registry cannot write uploads at the moment; try again", reason="UPLOADS_UNAVAILABLE")

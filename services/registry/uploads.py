"""Unfinished uploads: the bytes of a blob so far, in a folder of its own, until all are there and verified.

    <folder>/<64 hex digits>.part     bytes 0 to committed size of the blob with this SHA-256

A part file is no blob yet. It survives a cut connection and a killed process, and the next upload goes on at its end;
damage by a power cut shows when the digest is compared.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import shutil
import threading
import time
from pathlib import Path

from ledger.encoding.digest import parse_digest
from services.registry.blobs import BlobStore
from services.registry.errors import BlobTooLarge, DigestMismatch, DiskFull, OffsetMismatch, UploadTakenOver
from services.runtime.errors import Unavailable

_log = logging.getLogger(__name__)

_READ_BYTES = 1024 * 1024
_SECONDS_A_DAY = 86_400.0


class Upload:
    """One upload of one blob. One thread at a time writes; `supersede` comes from any."""

    def __init__(self, path: Path, digest: str, size: int, before: Upload | None) -> None:
        """`before` is another upload of the same blob, which has to end before this one begins."""
        self._path = path
        self.digest = digest
        self._size = size
        self._before = before
        self._lock = threading.Lock()
        self._superseded = False
        self._sha256 = hashlib.sha256()
        self._committed = 0

    @property
    def complete(self) -> bool:
        return self._committed == self._size

    def begin(self, offset: int) -> None:
        """Wait for the upload before this one, then read what is there.

        Raises OffsetMismatch where it ends elsewhere than at `offset`, DiskFull, UploadTakenOver.
        """
        with self._lock:
            self._end_before()
            self._check_current()
            try:
                self._read()
            except OSError as error:
                raise _failed(error) from error
            if self._committed > self._size:  # another size was declared before: one of them lied
                self._path.unlink()
                raise OffsetMismatch(offset, 0)
            if self._committed != offset:
                raise OffsetMismatch(offset, self._committed)

    def _read(self) -> None:
        with self._path.open("ab"):  # there from the first byte on
            pass
        with self._path.open("rb") as file:
            while chunk := file.read(_READ_BYTES):
                self._sha256.update(chunk)
                self._committed += len(chunk)

    def write(self, data: bytes) -> None:
        """Add bytes. Raises BlobTooLarge, DiskFull, UploadTakenOver."""
        with self._lock:
            self._check_current()
            if self._committed + len(data) > self._size:
                raise BlobTooLarge(self._committed + len(data), self._size)
            try:
                with self._path.open("ab") as file:
                    file.write(data)
            except OSError as error:
                raise _failed(error) from error
            self._sha256.update(data)
            self._committed += len(data)

    def finish(self, blobs: BlobStore) -> None:
        """All bytes are there: make the blob visible.

        Raises DigestMismatch, UploadTakenOver, and what `BlobStore.put` raises.
        """
        with self._lock:
            self._check_current()
            found = "sha256:" + self._sha256.hexdigest()
            if found != self.digest:
                self._path.unlink(missing_ok=True)
                raise DigestMismatch(self.digest, found)
            blobs.put(self.digest, self._path)
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

    def __init__(self, folder: Path, most_bytes: int) -> None:
        """Raises OSError where the folder cannot be made."""
        self._folder = folder
        self._most_bytes = most_bytes
        self._current: dict[str, Upload] = {}
        self._lock = threading.Lock()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def committed(self, digest: str) -> int:
        """Bytes that an upload of this blob has left; 0 where there was none."""
        try:
            return self._path(digest).stat().st_size
        except FileNotFoundError:
            return 0

    def begin(self, digest: str, size: int, offset: int) -> Upload:
        """An upload that goes on at `offset`. Another one of the same blob ends here. `end` has to follow.

        Raises BlobTooLarge, DiskFull, OffsetMismatch, all before anything is written.
        """
        if size > self._most_bytes:
            raise BlobTooLarge(size, self._most_bytes)
        if shutil.disk_usage(self._folder).free < size - min(offset, size):
            raise DiskFull()
        with self._lock:
            upload = Upload(self._path(digest), digest, size, self._current.get(digest))
            self._current[digest] = upload
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
            if self._current.get(upload.digest) is upload:
                del self._current[upload.digest]

    def forget_older_than(self, days: float) -> None:
        """Remove part files that nobody has added to for so long, and nobody is about to."""
        with self._lock:
            current = {self._path(digest) for digest in self._current}
            for path in self._folder.glob("*.part"):
                if path not in current and time.time() - path.stat().st_mtime > days * _SECONDS_A_DAY:
                    _log.info("an upload was given up: %s", path.name)
                    path.unlink()

    def _path(self, digest: str) -> Path:
        return self._folder / f"{parse_digest(digest).hex()}.part"


def _failed(error: OSError) -> DiskFull | Unavailable:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFull()
    _log.error("cannot keep an upload: %s", error)
    return Unavailable("the registry cannot keep uploads for the moment", reason="UPLOADS_UNAVAILABLE")

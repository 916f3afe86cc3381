"""Blobs: bytes under their SHA-256, written once, whole or not there."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from ledger.digest import parse_digest
from services.registry.errors import DiskFull
from services.runtime.errors import DataLoss, NotFound, Unavailable

_log = logging.getLogger(__name__)

CHUNK_BYTES = 1024 * 1024
"""What one message of an upload or a download carries at most."""

_MULTIPART_BYTES = 64 * 1024 * 1024
"""Above it, an object is written in parts: create-if-absent would need all of it in memory."""


class BlobStore(Protocol):
    """Blobs by digest (`sha256:<hex>`). From any thread.

    Atomicity: a blob is visible whole or not at all, whenever the process dies. Immutability: bytes under a digest are
    those bytes; putting them again changes nothing. Errors: NotFound where documented, Unavailable (BLOBS_UNAVAILABLE)
    and DiskFull for the store's own failures, DataLoss where stored bytes are not those of their digest.
    """

    def size(self, digest: str) -> int | None:
        """The number of bytes, None where there is no such blob."""
        ...

    def put(self, digest: str, path: Path) -> None:
        """Keep the bytes of a file, which the caller has verified to be those of `digest`."""
        ...

    def chunks(self, digest: str, start: int = 0) -> Iterator[bytes]:
        """The bytes from `start` on, in pieces of at most CHUNK_BYTES. Raises NotFound; DataLoss instead of the last
        piece where the whole blob has another digest.
        """
        ...

    def range(self, digest: str, start: int, length: int) -> bytes:
        """Some of the bytes, not verified against the digest. Raises NotFound."""
        ...

    def read(self, digest: str, most: int) -> bytes:
        """All bytes, verified. Raises NotFound; DataLoss also for more than `most` bytes."""
        ...


class ObjectBlobStore:
    """A BlobStore in a folder or in a bucket (S3, GCS, Azure): `<prefix>/sha256/ab/<64 hex digits>`."""

    def __init__(self, store: ObjectStore, folder: Path | None = None) -> None:
        """`folder` is where a local store keeps its objects; what is put there is made durable."""
        self._store = store
        self._folder = folder

    @classmethod
    def open(cls, location: str) -> ObjectBlobStore:
        """A folder's path, or a URL that obstore knows (s3://, gs://, az://, file://, memory://); credentials come from
        the environment. Raises ValueError.
        """
        if "://" in location:
            try:
                return cls(from_url(location))
            except (BaseError, ValueError) as error:
                raise ValueError(_first_line(error)) from None
        folder = Path(location)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return cls(LocalStore(folder), folder)

    def size(self, digest: str) -> int | None:
        try:
            return int(self._ask(obstore.head, _key(digest))["size"])
        except FileNotFoundError:
            return None

    def put(self, digest: str, path: Path) -> None:
        size = path.stat().st_size
        if self.size(digest) == size:
            return
        if size > _MULTIPART_BYTES:
            self._ask(obstore.put, _key(digest), path)
        else:
            self._create(digest, path)
        self._sync(_key(digest))

    def _create(self, digest: str, path: Path) -> None:
        try:
            self._ask(obstore.put, _key(digest), path, mode="create")
        except AlreadyExistsError:
            if self.size(digest) != path.stat().st_size:  # a power cut took what was not on disk yet
                self._ask(obstore.put, _key(digest), path)

    def chunks(self, digest: str, start: int = 0) -> Iterator[bytes]:
        total, position, sha256 = self._known_size(digest), 0, hashlib.sha256()
        while position < total:
            chunk = self.range(digest, position, min(CHUNK_BYTES, total - position))
            sha256.update(chunk)
            position += len(chunk)
            if position == total and sha256.digest() != parse_digest(digest):
                raise DataLoss(f"the blob {digest} is damaged: its bytes have another digest", reason="BLOB_DAMAGED")
            if position > start:
                yield chunk[max(0, start - position + len(chunk)) :]

    def range(self, digest: str, start: int, length: int) -> bytes:
        try:
            data = bytes(self._ask(obstore.get_range, _key(digest), start=start, length=length))
        except FileNotFoundError:
            raise NotFound("blob", digest) from None
        if len(data) != length:
            raise DataLoss(f"the blob {digest} is damaged: it ends before its size", reason="BLOB_DAMAGED")
        return data

    def read(self, digest: str, most: int) -> bytes:
        if self._known_size(digest) > most:
            raise DataLoss(f"the blob {digest} has more than {most} bytes", reason="BLOB_TOO_LARGE")
        return b"".join(self.chunks(digest))

    def _known_size(self, digest: str) -> int:
        size = self.size(digest)
        if size is None:
            raise NotFound("blob", digest, "upload it first")
        return size

    def _ask(self, call: Any, key: str, *arguments: Any, **options: Any) -> Any:
        try:
            return call(self._store, key, *arguments, **options)
        except AlreadyExistsError:
            raise
        except BaseError as error:
            if "No space left" in str(error):
                raise DiskFull() from error
            _log.error("the store of blobs failed: %s", _first_line(error))
            raise Unavailable("the registry's store of blobs failed; try again", reason="BLOBS_UNAVAILABLE") from error

    def _sync(self, key: str) -> None:
        """obstore leaves it to the kernel when a local file reaches the disk; a publication must not come before."""
        if self._folder is None:
            return
        for path in (self._folder / key, (self._folder / key).parent):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _key(digest: str) -> str:
    hexadecimal = parse_digest(digest).hex()
    return f"sha256/{hexadecimal[:2]}/{hexadecimal}"


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]

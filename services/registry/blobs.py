"""Blobs: bytes under their SHA-256, written once, whole or not there. The contract."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

CHUNK_BYTES = 1024 * 1024
"""Most bytes of one message of an upload or a download."""


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """One blob of a list; `modified` is when it was written, by the store's clock, in UTC."""

    digest: str
    size: int
    modified: datetime


class BlobStore(Protocol):
    """Blobs by digest (`sha256:<hex>`). From any thread, and from several processes on one store.

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

    def listed(self) -> Iterator[StoredBlob]:
        """Every blob that was there when the list began, in no order. Other objects are left out."""
        ...

    def remove(self, digests: Collection[str]) -> None:
        """Forget blobs; those that are not there are as they should be."""
        ...

    def sweep(self, before: datetime) -> int:
        """Remove unfinished writes from before `before`; returns the bytes that this freed."""
        ...

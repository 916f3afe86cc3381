"""A BlobStore in memory, whose clock is the test's."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path

from ledger.encoding.text_forms import digest
from services.registry.blobs import StoredBlob
from services.runtime.errors import NotFound


class MemoryBlobs:
    """Honest and whole; `now` is when things are written."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 2, tzinfo=UTC)
        self._kept: dict[str, tuple[bytes, datetime]] = {}

    def keep(self, data: bytes) -> str:
        """Put bytes; their digest."""
        self._kept.setdefault(digest(data), (data, self.now))
        return digest(data)

    @property
    def digests(self) -> set[str]:
        return set(self._kept)

    def size(self, name: str) -> int | None:
        return len(self._kept[name][0]) if name in self._kept else None

    def put(self, name: str, path: Path) -> None:
        assert self.keep(path.read_bytes()) == name

    def chunks(self, name: str, start: int = 0) -> Iterator[bytes]:
        yield self.read(name, 2**40)[start:]

    def range(self, name: str, start: int, length: int) -> bytes:
        return self.read(name, 2**40)[start : start + length]

    def read(self, name: str, most: int) -> bytes:
        if name not in self._kept:
            raise NotFound("blob", name)
        return self._kept[name][0]

    def listed(self) -> Iterator[StoredBlob]:
        yield from [StoredBlob(name, len(data), written) for name, (data, written) in self._kept.items()]

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            self._kept.pop(name, None)

    def sweep(self, before: datetime) -> int:
        return 0

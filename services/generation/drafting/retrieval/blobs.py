"""A datastore's files: written whole, known by digest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.generation.drafting.retrieval.errors import StoreInvalid

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Blob:
    """A file of a datastore as its manifest names it."""

    path: str  # inside the datastore's folder
    digest: str  # sha256:<64 hex>
    size: int  # bytes

    @classmethod
    def of(cls, folder: Path, path: str) -> Blob:
        return cls(path, _digest(folder / path), (folder / path).stat().st_size)

    @classmethod
    def from_document(cls, document: Any) -> Blob:
        """Raises StoreInvalid if it is not a blob's entry, or names a file outside of the folder."""
        match document:
            case {"path": str(path), "digest": str(digest), "size": int(size)} if "/" not in path and path[:1] != ".":
                return cls(path, digest, size)
        raise StoreInvalid(f"manifest.json: {document!r} is not a file of a datastore")

    def to_document(self) -> dict[str, Any]:
        return {"path": self.path, "digest": self.digest, "size": self.size}

    def check(self, folder: Path, *, contents: bool) -> Path:
        """The file, if it has the size (and, with `contents`, the bytes) of the manifest; else StoreInvalid."""
        path = folder / self.path
        try:
            size = path.stat().st_size
        except OSError as error:
            raise StoreInvalid(f"{path}: {error.strerror}; build the datastore again") from error
        if size != self.size:
            raise StoreInvalid(f"{path}: {size} bytes, the manifest says {self.size}; build the datastore again")
        if contents and _digest(path) != self.digest:
            raise StoreInvalid(f"{path}: its bytes are not those of the manifest; build the datastore again")
        return path


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"

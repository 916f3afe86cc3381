"""A file as a manifest names it: name, size and SHA-256."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from ledger.encoding.fields import Fields
from ledger.errors import FormatError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""No slash, no leading dot, no character with a meaning to a file system, a shell or a terminal."""


@dataclass(frozen=True, slots=True)
class NamedFile:
    """One file. `digest` is `sha256:<hex>` of its bytes, `size` their number."""

    name: str
    size: int
    digest: str

    def to_document(self) -> dict[str, Any]:
        return {"name": self.name, "size": self.size, "digest": self.digest}

    @classmethod
    def from_document(cls, document: object, path: str) -> NamedFile:
        """Raises FormatError, also for a name that could lead out of its folder."""
        fields = Fields(document, path)
        file = cls(
            name=checked_name(fields.read("name"), fields.path("name")),
            size=fields.integer("size"),
            digest=fields.digest("digest"),
        )
        fields.close()
        return file

    @classmethod
    def of(cls, name: str, data: bytes) -> NamedFile:
        """The description of bytes in memory."""
        return cls(name, len(data), "sha256:" + hashlib.sha256(data).hexdigest())


def checked_name(value: object, path: str) -> str:
    """A plain file name, as draft heads and the files of manifests bear. Raises FormatError."""
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise FormatError(
            path, "expected a plain name: 1 to 128 of letters, digits, '.', '_' and '-', the first a letter or digit"
        )
    return value


def named_files(fields: Fields, name: str, most: int) -> tuple[NamedFile, ...]:
    """1 to `most` files of an array, no name twice. Raises FormatError."""
    path, values = fields.path(name), fields.array(name)
    if not 1 <= len(values) <= most:
        raise FormatError(path, f"expected 1 to {most} files, got {len(values)}")
    found = tuple(NamedFile.from_document(value, f"{path}[{place}]") for place, value in enumerate(values))
    if len({file.name for file in found}) != len(found):
        raise FormatError(path, "names a file twice")
    return found

"""The lines inside a bundle's files: older trees, content, hashes. Read strictly; all of them are claims."""

from __future__ import annotations

from typing import Annotated, Any, Self

from msgspec import Meta, structs

from ledger.documents.content import Content
from ledger.encoding.document import Count, Hash, Part, Positive, written
from ledger.encoding.text_forms import decode_base64
from ledger.errors import FormatError
from ledger.tree.merkle import HASH_BYTES


class OlderTree(Part, frozen=True):
    """An older tree of the log: its root, the consistency proof to the bundle's tree, and its signed note, if any."""

    size: Positive
    root: Hash
    proof: tuple[Hash, ...]
    checkpoint: Annotated[str, Meta(min_length=1, max_length=128 * 1024)] | None = written(None)

    @classmethod
    def from_bytes(cls, data: bytes, path: str = "trees.jsonl") -> Self:
        """Raises FormatError naming the first field that is wrong."""
        return super().from_bytes(data, path)


class ContentLine(Content, frozen=True, kw_only=True):
    """The content that the receipt at `index` commits to."""

    index: Count

    @classmethod
    def of(cls, index: int, content: Content) -> Self:
        return cls(index=index, **structs.asdict(content))

    @property
    def content(self) -> Content:
        return Content(*(getattr(self, name) for name in Content.__struct_fields__))

    @classmethod
    def from_bytes(cls, data: bytes, path: str = "content") -> Self:
        """Raises FormatError naming the first field that is wrong."""
        return super().from_bytes(data, path)


def split_lines(data: bytes, path: str) -> list[bytes]:
    """The lines of a file in which every line ends in a newline and none is empty. Raises FormatError."""
    if not data:
        return []
    lines = data.split(b"\n")
    if lines.pop() or not all(lines):
        raise FormatError(path, "expected lines, none of them empty, each ended by a newline")
    return lines


def read_hashes(data: bytes, path: str) -> tuple[bytes, ...]:
    """The hashes of a file with one in base64 a line. Raises FormatError."""
    try:
        lines = [line.decode("ascii") for line in split_lines(data, path)]
    except UnicodeDecodeError:
        raise FormatError(path, "expected ASCII") from None
    return tuple(_hash(line, path) for line in lines)


def _hash(value: Any, path: str) -> bytes:
    data = decode_base64(value, path)
    if len(data) != HASH_BYTES:
        raise FormatError(path, f"expected a hash of {HASH_BYTES} bytes")
    return data

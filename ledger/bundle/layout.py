"""The layout of a bundle, a part of the log that can be verified offline: its files, their names, their bounds, and
their lines. All of them are claims. docs/bundle.md specifies the format. This file knows no file system: `export` makes
the files, `folder` packs, unpacks and reads them, `verification` checks them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, Self

from msgspec import Meta, structs

from ledger.documents.content import Content
from ledger.encoding.document import Count, Document, Hash, Part, Positive, Text, Time, written
from ledger.encoding.text_forms import decode_base64
from ledger.errors import BundleTooLarge, FormatError
from ledger.keys.note import check_key_name
from ledger.tree.merkle import HASH_BYTES

MANIFEST, CHECKPOINT, PROOF, TREES, POLICY = "bundle.json", "checkpoint", "proof", "trees.jsonl", "policy"
TRANSCRIPT = "transcript.json"
ENTRIES_PER_FILE = 256
MAX_FILES = 100_000
MAX_TOTAL_BYTES = 8 * 2**30
SMALLER = "export a shorter range, or the log as tiles"
"""The remedy for a bundle above these bounds."""

_KIB, _MIB = 2**10, 2**20
_MOST_SWELLING = 50
"""The largest ratio of unpacked bytes, beyond the first `_FREE_BYTES`, to the archive's size. Bundles of ordinary text
have 3 to 8; a malicious gzip file can have a thousand.
"""
_FREE_BYTES = 64 * _MIB
_FILE_BYTES = 4 * _KIB
"""The disk space of a file in addition to its bytes."""
_BOUNDS: tuple[tuple[re.Pattern[str], int], ...] = tuple(
    (re.compile(pattern), bound)
    for pattern, bound in (
        (r"bundle\.json", 64 * _KIB),
        (r"checkpoint", 128 * _KIB),
        (r"proof", 16 * _MIB),
        (r"trees\.jsonl", 64 * _MIB),
        (r"policy", 64 * _KIB),
        (r"transcript\.json", 64 * _MIB),
        (r"entries/[0-9]{12}\.jsonl", ENTRIES_PER_FILE * 65_536),
        (r"content/[0-9]{12}\.jsonl", 64 * _MIB),
        (r"heads/[0-9a-f]{64}\.json", 256 * _KIB),
        (r"keys/[a-z]+-[0-9a-f]{16}\.pub", 4 * _KIB),
    )
)


@dataclass(frozen=True, slots=True)
class BundleFile:
    """One file of a bundle: its path, with forward slashes, and all of its bytes."""

    path: str
    data: bytes


class BundleFiles(Protocol):
    """A source of a bundle's files, sent to other processes. Holding one proves nothing: use
    `verification.verify_bundle`.
    """

    def read(self, path: str) -> bytes:
        """The bytes of one file. Raises FormatError if it is missing or too large, StoreError if it cannot be read."""
        ...

    def paths(self) -> tuple[str, ...]:
        """All files, sorted. Raises FormatError for any other file than a bundle's."""
        ...


class Span(Part, frozen=True):
    """The entries from `start` to before `end`."""

    start: Count
    end: Count


class BundleManifest(Document, tag="kolm.bundle.v2", frozen=True):
    """`bundle.json`: the claims of the bundle about itself. No entry of the log is missing in `range`."""

    PLACE = MANIFEST
    origin: Text
    tree_size: Count
    range: Span
    entries: Count
    exported_at: Time

    def check(self) -> None:
        check_key_name(self.origin, "origin")
        if not self.range.start <= self.range.end <= self.tree_size:
            raise FormatError("range", "expected start <= end <= tree_size")


class Room:
    """The room that an archive may still take, in memory and on the disk: a small archive cannot fill a large disk."""

    def __init__(self, archive_bytes: int | None) -> None:
        """`archive_bytes` is the archive's size; None allows all that the format allows."""
        self._most = MAX_TOTAL_BYTES
        if archive_bytes is not None:
            self._most = min(MAX_TOTAL_BYTES, _FREE_BYTES + _MOST_SWELLING * archive_bytes)
        self._left = self._most

    def take(self, size: int) -> None:
        """Take bytes from the room. Raises BundleTooLarge if there are not enough left."""
        self._left -= size
        if self._left >= 0:
            return
        problem = f"has more than the {MAX_TOTAL_BYTES} bytes of a bundle: {SMALLER}"
        if self._most < MAX_TOTAL_BYTES:
            problem = (
                f"unpacks to more than the {self._most} bytes allowed for an archive of its size: if you expect so "
                "much, unpack it yourself and name the folder"
            )
        raise BundleTooLarge("bundle", problem)

    def take_file(self, size: int) -> None:
        """Take the disk space of a file. Raises BundleTooLarge."""
        self.take(size + _FILE_BYTES)


def bound_of(path: str) -> int:
    """The most bytes that a bundle's file of this path may measure. Raises FormatError for any other path."""
    for pattern, bound in _BOUNDS:
        if pattern.fullmatch(path):
            return bound
    raise FormatError("bundle", f"{path[:100]!r} is not a file of a bundle")


class OlderTree(Part, frozen=True):
    """An older tree of the log: its root, the consistency proof to the bundle's tree, and its signed note, if any."""

    PLACE = TREES
    size: Positive
    root: Hash
    proof: tuple[Hash, ...]
    checkpoint: Annotated[str, Meta(min_length=1, max_length=128 * 1024)] | None = written(None)


class ContentLine(Content, frozen=True, kw_only=True):
    """The content that the receipt at `index` commits to."""

    PLACE = "content"
    index: Count

    @classmethod
    def of(cls, index: int, content: Content) -> Self:
        return cls(index=index, **structs.asdict(content))

    @property
    def content(self) -> Content:
        return Content(*(getattr(self, name) for name in Content.__struct_fields__))


def split_lines(data: bytes, path: str) -> list[bytes]:
    """The lines of a file in which every line ends in a newline and none is empty. Raises FormatError."""
    if not data:
        return []
    lines = data.split(b"\n")
    if lines.pop() or not all(lines):
        raise FormatError(path, "expected lines, none of them empty, each ended by a newline")
    return lines


def read_hashes(data: bytes, path: str) -> tuple[bytes, ...]:
    """The hashes of a file with one hash in base64 on each line. Raises FormatError."""
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

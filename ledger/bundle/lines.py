"""The lines inside a bundle's files: older trees, content, hashes. Read strictly; all of them are claims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ledger.documents.content import Content
from ledger.documents.sampling import MAX_TOKEN_ID
from ledger.encoding.base64_text import decode_base64, encode_base64
from ledger.encoding.canonical import canonical, parse
from ledger.encoding.fields import Fields, checked_integer
from ledger.errors import FormatError
from ledger.tree.merkle import HASH_BYTES

MAX_CONSTRAINT = 1 << 20  # characters of a constraint on the output; servers take fewer


@dataclass(frozen=True, slots=True)
class OlderTree:
    """An older tree of the log: its root, the consistency proof to the bundle's tree, and its signed note, if any."""

    size: int
    root: bytes
    proof: tuple[bytes, ...]
    checkpoint: bytes | None = None

    def to_bytes(self) -> bytes:
        return canonical(
            {
                "size": self.size,
                "root": encode_base64(self.root),
                "proof": [encode_base64(node) for node in self.proof],
                "checkpoint": None if self.checkpoint is None else self.checkpoint.decode("utf-8"),
            }
        )

    @classmethod
    def from_bytes(cls, line: bytes) -> OlderTree:
        """Raises FormatError naming the first field that is wrong."""
        fields = Fields(parse(line, "trees.jsonl"), "trees.jsonl")
        tree = cls(
            size=fields.integer("size", 1),
            root=_hash(fields.read("root"), fields.path("root")),
            proof=tuple(_hash(node, fields.path("proof")) for node in fields.array("proof")),
            checkpoint=fields.optional("checkpoint", lambda name: fields.text(name, longest=128 * 1024).encode()),
        )
        fields.close()
        return tree


@dataclass(frozen=True, slots=True)
class ContentLine:
    """The content that the receipt at `index` commits to."""

    index: int
    content: Content

    def to_bytes(self) -> bytes:
        return canonical({"index": self.index, **content_members(self.content)})

    @classmethod
    def from_bytes(cls, line: bytes) -> ContentLine:
        """Raises FormatError naming the first field that is wrong."""
        fields = Fields(parse(line, "content"), "content")
        read = cls(fields.integer("index"), content_of(fields))
        fields.close()
        return read


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


def content_members(content: Content) -> dict[str, Any]:
    """As members of a document. Without a constraint there is no member for one."""
    constraint = content.structured_outputs
    return ({} if constraint is None else {"structured_outputs": constraint}) | {
        "prompt_salt": encode_base64(content.prompt_salt),
        "prompt_token_ids": list(content.prompt_token_ids),
        "output_salt": encode_base64(content.output_salt),
        "output_token_ids": list(content.output_token_ids),
    }


def content_of(fields: Fields) -> Content:
    """Takes the members of `content_members`. Raises FormatError."""
    return Content(
        prompt_salt=decode_base64(fields.read("prompt_salt"), fields.path("prompt_salt")),
        prompt_token_ids=_token_ids(fields, "prompt_token_ids"),
        output_salt=decode_base64(fields.read("output_salt"), fields.path("output_salt")),
        output_token_ids=_token_ids(fields, "output_token_ids"),
        structured_outputs=_constraint(fields),
    )


def _constraint(fields: Fields) -> str | None:
    name = "structured_outputs"
    return fields.text(name, longest=MAX_CONSTRAINT, empty=True) if fields.has(name) else None


def _token_ids(fields: Fields, name: str) -> tuple[int, ...]:
    path = fields.path(name)
    return tuple(checked_integer(value, path, 0, MAX_TOKEN_ID) for value in fields.array(name))

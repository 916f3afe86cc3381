"""The entry: what the log appends, its bytes, and the two hashes over them.
Entry bytes are the canonical JSON of `{"envelope", "index", "previous"}`, so the hash chain lives inside the leaf. The
Merkle tree over the leaves is the only proof structure; the chain is for fsck and for a reader with nothing but SQL.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledger.canonical import canonical, parse
from ledger.digest import ZERO_DIGEST, digest
from ledger.envelope import Envelope
from ledger.errors import FormatError
from ledger.fields import Fields
from ledger.merkle import leaf_hash

MAX_ENTRY_BYTES = 65_535
"""C2SP tlog-tiles entry bundles prefix each entry with its length as a u16."""

MAX_PAYLOAD_BYTES = 47_000
"""What a document may measure so that its entry, with base64 (4/3) and up to 16 signatures, never exceeds
MAX_ENTRY_BYTES.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One leaf of the log. `previous` is `entry_hash` of the entry before it, ZERO_DIGEST at index 0."""

    index: int
    previous: str
    envelope: Envelope

    def to_bytes(self) -> bytes:
        """The canonical bytes. Raises FormatError where they exceed MAX_ENTRY_BYTES."""
        data = canonical({"index": self.index, "previous": self.previous, "envelope": self.envelope.to_document()})
        if len(data) > MAX_ENTRY_BYTES:
            raise FormatError("envelope", f"makes an entry of {len(data)} bytes, at most {MAX_ENTRY_BYTES} fit")
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> Entry:
        """The entry of canonical bytes; `Entry.from_bytes(b).to_bytes() == b`. Raises FormatError for all other
        bytes.
        """
        if len(data) > MAX_ENTRY_BYTES:
            raise FormatError("entry", f"measures {len(data)} bytes, at most {MAX_ENTRY_BYTES} are allowed")
        fields = Fields(parse(data, "entry"))
        entry = cls(
            index=fields.integer("index"),
            previous=fields.digest("previous"),
            envelope=_canonical_envelope(fields.read("envelope")),
        )
        fields.close()
        return entry


def entry_hash(data: bytes) -> str:
    """What the next entry names as its `previous`: `sha256:<hex>` of the entry's bytes."""
    return digest(data)


def _canonical_envelope(document: object) -> Envelope:
    # One envelope has one spelling in the log: url-safe base64 or an empty keyid would be other bytes for the same
    # thing.
    envelope = Envelope.from_document(document, "envelope")
    if envelope.to_document() != document:
        raise FormatError("envelope", "is not in canonical form")
    return envelope


__all__ = ["MAX_ENTRY_BYTES", "MAX_PAYLOAD_BYTES", "ZERO_DIGEST", "Entry", "entry_hash", "leaf_hash"]

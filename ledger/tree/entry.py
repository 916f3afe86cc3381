"""The entry of the log: its bytes, and the hash that chains them.

Entry bytes are the canonical JSON of `{"envelope", "index", "previous"}`, so the hash chain lives inside the leaf. The
Merkle tree over the leaves is the only proof structure; the chain is for fsck and for a reader with nothing but SQL.
"""

from __future__ import annotations

from ledger.encoding.document import Count, Digest, Part
from ledger.encoding.text_forms import digest, parse_digest
from ledger.errors import FormatError
from ledger.keys.envelope import Envelope

MAX_ENTRY_BYTES = 65_535
"""C2SP tlog-tiles entry bundles prefix each entry with its length as a u16."""

MAX_ENVELOPE_BYTES = MAX_ENTRY_BYTES - 256
"""The largest envelope. The 256 bytes hold the rest of the entry: member names, index and previous hash."""


class Entry(Part, frozen=True):
    """One leaf of the log. `previous` is `entry_hash` of the entry before it, `digest.ZERO_DIGEST` at index 0."""

    index: Count
    previous: Digest
    envelope: Envelope

    def to_bytes(self) -> bytes:
        """The canonical bytes. Raises FormatError where they exceed MAX_ENTRY_BYTES."""
        return entry_bytes(self.index, self.previous, self.envelope.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes, path: str = "") -> Entry:
        """The entry of canonical bytes; `Entry.from_bytes(b).to_bytes() == b`. Raises FormatError."""
        if len(data) > MAX_ENTRY_BYTES:
            raise FormatError("entry", f"measures {len(data)} bytes, at most {MAX_ENTRY_BYTES} are allowed")
        return super().from_bytes(data, path or "entry")


def entry_bytes(index: int, previous: str, envelope: bytes) -> bytes:
    """`Entry.to_bytes` from the canonical bytes of the envelope, which stand in the entry as they are."""
    data = b'{"envelope":%b,"index":%d,"previous":"%b"}' % (envelope, index, previous.encode())
    if len(data) > MAX_ENTRY_BYTES:
        raise FormatError("envelope", f"makes an entry of {len(data)} bytes, at most {MAX_ENTRY_BYTES} fit")
    return data


def entry_hash(data: bytes) -> str:
    """The hash that the next entry names as its `previous`: `sha256:<hex>` of the entry's bytes."""
    return digest(data)


def previous_of(data: bytes) -> bytes:
    """The 32 bytes that canonical entry bytes name as previous, which is their last member. Raises FormatError."""
    head, _, text = data.removesuffix(b'"}').rpartition(b'"previous":"')
    if not head:
        raise FormatError("previous", "is missing")
    return parse_digest(text.decode("utf-8", "replace"), "previous")

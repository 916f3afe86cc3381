"""The entry of the log: its bytes (format 2), and the running hash over a log.

Entry bytes are the canonical JSON of `{"envelope", "index"}`. The Merkle tree over them proves their order and is the
only proof structure. The running hash proves nothing more: it serves fsck, the comparison of two copies, and readers
who only have SQL.
"""

from __future__ import annotations

import hashlib

from ledger.encoding.document import Count, Part
from ledger.errors import FormatError
from ledger.keys.envelope import Envelope

MAX_ENTRY_BYTES = 65_535
"""C2SP tlog-tiles entry bundles prefix each entry with its length as a u16."""

MAX_ENVELOPE_BYTES = MAX_ENTRY_BYTES - 256
"""The largest envelope. The 256 bytes have room for the rest of the entry: member names and index."""

CHAIN_START = bytes(32)
"""The running hash of no entries."""


class Entry(Part, frozen=True):
    """One leaf of the log."""

    PLACE = "entry"
    index: Count
    envelope: Envelope

    def to_bytes(self) -> bytes:
        """The canonical bytes. Raises FormatError if they exceed MAX_ENTRY_BYTES."""
        return entry_bytes(self.index, self.envelope.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Entry:
        """The entry of canonical bytes; `Entry.from_bytes(b).to_bytes() == b`. Raises FormatError."""
        if len(data) > MAX_ENTRY_BYTES:
            raise FormatError("entry", f"measures {len(data)} bytes, at most {MAX_ENTRY_BYTES} are allowed")
        return super().from_bytes(data)


def entry_bytes(index: int, envelope: bytes) -> bytes:
    """`Entry.to_bytes` from the canonical bytes of the envelope, which are a part of the entry's bytes."""
    data = b'{"envelope":%b,"index":%d}' % (envelope, index)
    if len(data) > MAX_ENTRY_BYTES:
        raise FormatError("envelope", f"makes an entry of {len(data)} bytes, at most {MAX_ENTRY_BYTES} fit")
    return data


def chained(before: bytes, leaf: bytes) -> bytes:
    """The running hash after an entry: SHA-256 of the previous running hash and the entry's leaf hash."""
    return hashlib.sha256(before + leaf).digest()

"""An entry of the log: its bytes (format 2), and the running hash over a log.

Entry bytes are the canonical JSON of `{"envelope", "index"}`. All proofs are of the Merkle tree over them. The running
hash is in no proof: fsck, comparisons of two copies, and readers with SQL alone use it.
"""

from __future__ import annotations

import hashlib

from ledger.encoding.document import Count, Part
from ledger.errors import FormatError
from ledger.keys.envelope import Envelope

MAX_ENTRY_BYTES = 65_535
"""The largest entry: a tlog-tiles entry bundle (C2SP) has the length of each entry as a u16."""

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
    """`Entry.to_bytes` from the canonical bytes of the envelope. Raises FormatError if they are too many."""
    data = b'{"envelope":%b,"index":%d}' % (envelope, index)
    if len(data) > MAX_ENTRY_BYTES:
        raise FormatError("envelope", f"makes an entry of {len(data)} bytes, at most {MAX_ENTRY_BYTES} are allowed")
    return data


def signed_by(key_id: str) -> bytes:
    """The part of an entry's bytes that names a key as a signer. No other part has these bytes."""
    return b'"keyid":"%b"' % key_id.encode()


def chained(before: bytes, leaf: bytes) -> bytes:
    """The running hash after an entry: SHA-256 of the previous running hash and the entry's leaf hash."""
    return hashlib.sha256(before + leaf).digest()

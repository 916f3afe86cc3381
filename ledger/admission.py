"""What stands between untrusted bytes and the queue: everything that can be checked without knowing the log."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ledger.content import Content
from ledger.document import Document, open_document
from ledger.entry import MAX_ENVELOPE_BYTES
from ledger.envelope import read_envelope
from ledger.errors import FormatError
from ledger.keys import TrustedKeys
from ledger.receipt import Receipt


@dataclass(frozen=True, slots=True)
class Admitted:
    """An envelope (its canonical bytes) whose document and signatures hold; their SHA-256 is its name in the log."""

    envelope: bytes
    envelope_digest: bytes
    document: Document
    content: Content | None


def admit(data: bytes, content: Content | None, trusted: TrustedKeys) -> Admitted:
    """Check a DSSE envelope, and the content that belongs to its receipt. Raises FormatError, SignatureError."""
    if len(data) > MAX_ENVELOPE_BYTES:
        raise FormatError("envelope", f"measures {len(data)} bytes, at most {MAX_ENVELOPE_BYTES} are taken")
    envelope, canonical = read_envelope(data)
    document = open_document(envelope, trusted)
    if content is not None:
        if not isinstance(document, Receipt):
            raise FormatError("content", "belongs beside a receipt, and this document is none")
        content.check(document)
    return Admitted(canonical, hashlib.sha256(canonical).digest(), document, content)

"""What stands between untrusted bytes and the queue: everything that can be checked without knowing the log."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ledger.content import Content
from ledger.document import Document, open_document
from ledger.entry import MAX_ENVELOPE_BYTES
from ledger.envelope import Envelope
from ledger.errors import FormatError
from ledger.keys import TrustedKeys
from ledger.receipt import Receipt


@dataclass(frozen=True, slots=True)
class Admitted:
    """An envelope whose document and signatures hold, with its name in the log: the SHA-256 of its canonical bytes."""

    envelope: Envelope
    envelope_digest: bytes
    document: Document
    content: Content | None


def admit(data: bytes, content: Content | None, trusted: TrustedKeys) -> Admitted:
    """Check a DSSE envelope, and the content that belongs to its receipt. Raises FormatError, SignatureError."""
    if len(data) > MAX_ENVELOPE_BYTES:
        raise FormatError("envelope", f"measures {len(data)} bytes, at most {MAX_ENVELOPE_BYTES} are taken")
    envelope = Envelope.from_bytes(data)
    document = open_document(envelope, trusted)
    if content is not None:
        if not isinstance(document, Receipt):
            raise FormatError("content", "belongs beside a receipt, and this document is none")
        content.check(document)
    return Admitted(envelope, hashlib.sha256(envelope.to_bytes()).digest(), document, content)

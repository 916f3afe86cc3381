"""The checks between untrusted bytes and the queue: all that need no knowledge of the log."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from ledger.audit.halt_breach import GRACE_SECONDS
from ledger.documents.content import Content
from ledger.documents.halt import Resume
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import Document, open_document
from ledger.encoding.timestamp import moved, timestamp
from ledger.errors import FormatError
from ledger.keys.envelope import read_envelope
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.entry import MAX_ENVELOPE_BYTES


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Admitted:
    """An envelope (its canonical bytes) whose document and signatures hold; their SHA-256 is its name in the log."""

    envelope: bytes
    envelope_digest: bytes
    document: Document
    content: Content | None


def admit(data: bytes, content: Content | None, trusted: TrustedKeys, clock: Callable[[], datetime] = _now) -> Admitted:
    """Check a DSSE envelope, and the content that belongs to its receipt. Raises FormatError, SignatureError.

    `clock` bounds the dates of resumes.
    """
    if len(data) > MAX_ENVELOPE_BYTES:
        raise FormatError("envelope", f"measures {len(data)} bytes, at most {MAX_ENVELOPE_BYTES} are taken")
    envelope, canonical = read_envelope(data)
    document = open_document(envelope, trusted)
    if isinstance(document, Resume):
        _check_not_ahead(document, timestamp(clock()))
    if content is not None:
        if not isinstance(document, Receipt):
            raise FormatError("content", "belongs beside a receipt, and this document is none")
        content.check(document)
    return Admitted(canonical, hashlib.sha256(canonical).digest(), document, content)


def _check_not_ahead(resume: Resume, now: str) -> None:
    """Otherwise later receipts would look as if they had been served in a halted scope."""
    if resume.issued_at > moved(now, GRACE_SECONDS):
        raise FormatError(
            "issued_at", f"is {resume.issued_at}, more than {GRACE_SECONDS} s ahead of the ledger's {now}"
        )

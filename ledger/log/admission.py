"""The checks of untrusted bytes that need no knowledge of the log, before they are queued."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from ledger.documents.content import Content
from ledger.documents.dates import check_not_ahead
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import Document, UnknownDocument, open_document
from ledger.encoding.text_forms import timestamp
from ledger.errors import FormatError
from ledger.keys.envelope import read_envelope
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.content_seal import packed
from ledger.tree.entry import MAX_ENVELOPE_BYTES


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Admitted:
    """An envelope (its canonical bytes) whose document and signatures are valid. Their SHA-256 identifies it in the
    log.

    `content` has the layout of `content_seal.packed`. `signers` are the ids of the keys that have signed it, `trusted`
    the keys that the signatures were checked with.
    """

    envelope: bytes
    envelope_digest: bytes
    document: Document
    content: bytes | None = None
    trusted: TrustedKeys | None = None
    signers: tuple[str, ...] = ()

    def with_content(self, content: Content) -> Admitted:
        """A copy with the content that belongs to its receipt. Raises FormatError."""
        if not isinstance(self.document, Receipt):
            raise FormatError("content", "belongs beside a receipt, and this document is not one")
        content.check_against(self.document)
        return replace(self, content=packed(content))


def admit(data: bytes, content: Content | None, trusted: TrustedKeys, clock: Callable[[], datetime] = _now) -> Admitted:
    """Check a DSSE envelope, and the content that belongs to its receipt. Raises FormatError, SignatureError, and
    ClockAhead for a date after `clock`'s time.

    Entries cannot be removed from the log, so a wrong date has to be refused here: replays are due by dates, and halts
    begin and end at dates.
    """
    if len(data) > MAX_ENVELOPE_BYTES:
        raise FormatError("envelope", f"measures {len(data)} bytes, at most {MAX_ENVELOPE_BYTES} are taken")
    envelope, canonical = read_envelope(data)
    document = open_document(envelope, trusted)
    if isinstance(document, UnknownDocument):
        raise FormatError("payloadType", f"{document.type} is not a kind of document that this ledger takes")
    check_not_ahead(document, timestamp(clock()))
    signers = tuple([signature.key_id for signature in envelope.signatures])
    admitted = Admitted(canonical, hashlib.sha256(canonical).digest(), document, trusted=trusted, signers=signers)
    return admitted if content is None else admitted.with_content(content)

"""A replay file: one receipt with the content that it commits to, all that a replay needs besides the base."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ledger.bundle.lines import ContentLine
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import kind_of, open_document, read_document
from ledger.encoding.canonical import canonical, parse
from ledger.encoding.fields import Fields
from ledger.errors import FormatError
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import TrustedKeys

_LONGEST_ENVELOPE = 65_535


@dataclass(frozen=True, slots=True)
class ReplayFile:
    """A `kolm.replay.v1` document, canonical JSON (RFC 8785). It holds the prompt: whoever has it can read that.

    `envelope` is the receipt's, as signed; `line` its content and its index in the log.
    """

    TYPE: ClassVar[str] = "kolm.replay.v1"

    envelope: Envelope
    line: ContentLine

    def to_bytes(self) -> bytes:
        envelope = self.envelope.to_bytes().decode("utf-8")
        return canonical({"type": self.TYPE, "envelope": envelope, "content": self.line.to_document()})

    @classmethod
    def from_bytes(cls, data: bytes) -> ReplayFile:
        """Raises FormatError naming the first field that is wrong."""
        fields = Fields(parse(data, "replay file"))
        fields.constant("type", cls.TYPE)
        envelope = Envelope.from_bytes(fields.text("envelope", longest=_LONGEST_ENVELOPE).encode())
        read = cls(envelope, ContentLine.from_fields(fields.part("content")))
        fields.close()
        return read

    def receipt(self, trusted: TrustedKeys | None) -> Receipt:
        """The receipt, whose commitments the content opens; `trusted` None checks no signature.

        Raises FormatError, SignatureError.
        """
        document = read_document(self.envelope) if trusted is None else open_document(self.envelope, trusted)
        if not isinstance(document, Receipt):
            raise FormatError("envelope", f"expected a receipt, got a {kind_of(document)}")
        self.line.content.check(document)
        return document

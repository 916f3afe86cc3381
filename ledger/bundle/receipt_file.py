"""A receipt file: all that its holder needs to prove a question and its answer offline, years later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from msgspec import Meta

from ledger.documents.content import TURN_MEMBERS, Content, check_opened, check_sent
from ledger.documents.content import Turn as SentTurn
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import kind_of, read_document
from ledger.encoding.document import Document
from ledger.errors import FormatError
from ledger.keys.envelope import Envelope
from ledger.tree.entry import Entry
from ledger.tree.tlog_proof import MAX_PROOF_BYTES, TlogProof

MAX_FILE_BYTES = 64 << 20

Turns = tuple[SentTurn, ...]
"""A conversation in the form of `ledger.documents.content`."""


class _FileDocument(Document, tag="kolm.receipt-file.v1", frozen=True):
    """A receipt file as JSON, with envelope and proof as texts."""

    envelope: str
    content: Content
    sent: str | Turns | None
    text: str | None
    proof: Annotated[str, Meta(max_length=MAX_PROOF_BYTES)] | None

    def check(self) -> None:
        for place, turn in enumerate(self.sent if isinstance(self.sent, tuple) else ()):
            if not {"role", "content"} <= turn.keys() <= {*TURN_MEMBERS} or not turn["role"]:
                raise FormatError(f"sent[{place}]", "expected a role, a content and optional members of a turn")


@dataclass(frozen=True, slots=True)
class ReceiptFile:
    """A `kolm.receipt-file.v1` document, canonical JSON (RFC 8785). It holds prompt and output: keep it like those.

    `envelope` is the signed receipt, and `content` opens its commitments. `sent` (the prompt's text or messages) and
    `text` (of the output) are present if the holder had them. `proof` is a tlog-proof of the entry, None if the log had
    not taken it yet.
    """

    TYPE: ClassVar[str] = _FileDocument.type_name()

    envelope: Envelope
    content: Content
    sent: str | Turns | None = None
    text: str | None = None
    proof: TlogProof | None = None

    def to_bytes(self) -> bytes:
        proof = None if self.proof is None else self.proof.to_bytes().decode()
        return _FileDocument(self.envelope.to_bytes().decode(), self.content, self.sent, self.text, proof).to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> ReceiptFile:
        """Read a file. Raises FormatError naming the first wrong field."""
        if len(data) > MAX_FILE_BYTES:
            raise FormatError("receipt file", f"measures {len(data)} bytes, at most {MAX_FILE_BYTES} are read")
        read = _FileDocument.from_bytes(data)
        proof = None if read.proof is None else TlogProof.from_bytes(read.proof.encode())
        if proof is not None and proof.extra is None:
            raise FormatError("proof", "carries no entry in its extra line")
        return cls(Envelope.from_bytes(read.envelope.encode()), read.content, read.sent, read.text, proof)

    def receipt(self) -> Receipt:
        """The receipt, which commits to the contents of this file; its signature and its index are not checked.

        Raises FormatError.
        """
        document = read_document(self.envelope)
        if not isinstance(document, Receipt):
            raise FormatError("envelope", f"expected a receipt, got a {kind_of(document)}")
        self.content.check_against(document)
        if self.text is not None:
            check_opened(document, self.content, self.text)
        if self.sent is not None:
            check_sent(document, self.content.prompt_salt, self.sent)
        if self.entry is not None and self.entry.envelope != self.envelope:
            raise FormatError("proof", "is about another entry than this receipt's")
        return document

    @property
    def entry(self) -> Entry | None:
        """The entry of the proof."""
        return None if self.proof is None or self.proof.extra is None else Entry.from_bytes(self.proof.extra)

"""A receipt file: all that its holder needs to show what was asked and answered, offline, years later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ledger.bundle.lines import content_members, content_of
from ledger.documents.content import Content, check_opened, check_sent
from ledger.documents.receipt import Receipt
from ledger.documents.sent import MEMBERS, Turn
from ledger.documents.signed_document import kind_of, read_document
from ledger.encoding.canonical import canonical, parse
from ledger.encoding.fields import Fields
from ledger.errors import FormatError
from ledger.keys.envelope import Envelope
from ledger.tree.entry import Entry
from ledger.tree.tlog_proof import MAX_PROOF_BYTES, TlogProof

MAX_FILE_BYTES = 64 << 20
_LONGEST = MAX_FILE_BYTES  # characters of a member; the file is bounded as a whole

Turns = tuple[Turn, ...]
"""A conversation, as `ledger.documents.sent` has it."""


@dataclass(frozen=True, slots=True)
class ReceiptFile:
    """A `kolm.receipt-file.v1` document, canonical JSON (RFC 8785). It holds prompt and output: keep it like those.

    `envelope` is the receipt as it was signed and `content` opens its commitments. `sent`, the prompt's text or
    messages, and `text`, the output's, are there where the holder had them. `proof` is a tlog-proof of the entry, None
    where the log had not taken it yet.
    """

    TYPE: ClassVar[str] = "kolm.receipt-file.v1"

    envelope: Envelope
    content: Content
    sent: str | Turns | None = None
    text: str | None = None
    proof: TlogProof | None = None

    def to_bytes(self) -> bytes:
        sent, proof = self.sent, self.proof
        return canonical(
            {
                "type": self.TYPE,
                "envelope": self.envelope.to_bytes().decode(),
                "content": content_members(self.content),
                "sent": list(sent) if isinstance(sent, tuple) else sent,
                "text": self.text,
                "proof": None if proof is None else proof.to_bytes().decode(),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> ReceiptFile:
        """Raises FormatError naming the first field that is wrong."""
        if len(data) > MAX_FILE_BYTES:
            raise FormatError("receipt file", f"measures {len(data)} bytes, at most {MAX_FILE_BYTES} are read")
        fields = Fields(parse(data, "receipt file"))
        fields.constant("type", cls.TYPE)
        content = fields.part("content")
        read = cls(
            envelope=Envelope.from_bytes(fields.text("envelope", longest=_LONGEST).encode()),
            content=content_of(content),
            sent=_sent(fields),
            text=fields.optional("text", lambda name: fields.text(name, longest=_LONGEST, empty=True)),
            proof=fields.optional("proof", lambda name: _proof(fields, name)),
        )
        for part in (content, fields):
            part.close()
        return read

    def receipt(self) -> Receipt:
        """The receipt, which commits to all that is here; its signature and its place are still to be checked.

        Raises FormatError.
        """
        document = read_document(self.envelope)
        if not isinstance(document, Receipt):
            raise FormatError("envelope", f"expected a receipt, got a {kind_of(document)}")
        self.content.check(document)
        if self.text is not None:
            check_opened(document, self.content, self.text)
        if self.sent is not None:
            check_sent(document, self.content.prompt_salt, self.sent)
        if self.entry is not None and self.entry.envelope != self.envelope:
            raise FormatError("proof", "is about another entry than this receipt's")
        return document

    @property
    def entry(self) -> Entry | None:
        """The entry that the proof is about."""
        return None if self.proof is None or self.proof.extra is None else Entry.from_bytes(self.proof.extra)


def _sent(fields: Fields) -> str | Turns | None:
    value: Any = fields.read("sent")
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, Sequence):
        raise FormatError("sent", "expected a text, messages or null")
    turns = []
    for place, each in enumerate(value):
        turn = Fields(each, f"sent[{place}]")
        read = {name: turn.text(name, longest=_LONGEST, empty=name != "role") for name in ("role", "content")}
        more = {name: turn.text(name, longest=_LONGEST) for name in MEMBERS if turn.has(name)}
        turn.close()
        turns.append(read | more)
    return tuple(turns)


def _proof(fields: Fields, name: str) -> TlogProof:
    proof = TlogProof.from_bytes(fields.text(name, longest=MAX_PROOF_BYTES).encode())
    if proof.extra is None:
        raise FormatError("proof", "carries no entry in its extra line")
    return proof

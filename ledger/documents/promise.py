"""A promise: before the answer, a signature under the receipts that the log will hold, and by when."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar

from ledger.documents.receipt import PromptPart, Receipt
from ledger.encoding.canonical import canonical, parse
from ledger.encoding.fields import Fields
from ledger.encoding.timestamp import parse_timestamp
from ledger.errors import FormatError, SignatureError
from ledger.keys.envelope import Envelope, pae, sign
from ledger.keys.signer import Signer
from ledger.keys.trusted_keys import TrustedKeys

PAYLOAD_TYPE = "application/vnd.kolm.promise.v1+json"
_ROLE = "receipts"
MOST_CHOICES = 1024
"""Choices of one promise: more than servers take in one request, and few enough to list."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A `kolm.promise.v1` document, signed by a key of role `receipts`. It is the caller's; the log does not hold it.

    The log will hold one receipt for each of `choices` by `due`, with this tenant, request and prompt commitment.
    """

    TYPE: ClassVar[str] = "kolm.promise.v1"

    promised_at: str
    due: str
    tenant: str
    request_id: str
    nonce: str | None
    base_cid: str
    profile_cid: str
    prompt: PromptPart
    choices: int

    def to_document(self) -> dict[str, Any]:
        return {
            "type": self.TYPE,
            "promised_at": self.promised_at,
            "due": self.due,
            "tenant": self.tenant,
            "request_id": self.request_id,
            "nonce": self.nonce,
            "base_cid": self.base_cid,
            "profile_cid": self.profile_cid,
            "prompt": self.prompt.to_document(),
            "choices": self.choices,
        }

    @classmethod
    def from_document(cls, document: object) -> Promise:
        """The promise that a parsed JSON value holds. Raises FormatError naming the first field that is wrong."""
        fields = Fields(document)
        fields.constant("type", cls.TYPE)
        promise = cls(
            promised_at=fields.time("promised_at"),
            due=fields.time("due"),
            tenant=fields.text("tenant"),
            request_id=fields.text("request_id"),
            nonce=fields.optional("nonce", lambda name: fields.text(name, longest=128)),
            base_cid=fields.cid("base_cid"),
            profile_cid=fields.cid("profile_cid"),
            prompt=PromptPart.from_fields(fields.part("prompt")),
            choices=fields.integer("choices", 1, MOST_CHOICES),
        )
        fields.close()
        if parse_timestamp(promise.due) < parse_timestamp(promise.promised_at):
            raise FormatError("due", "is before promised_at")
        return promise

    def is_kept_by(self, receipt: Receipt) -> bool:
        """Whether a receipt is one of those that were promised."""
        return receipt.sampling.choice < self.choices and _terms(receipt) == _terms(self)

    def digests(self) -> tuple[bytes, ...]:
        """`kept_digest` of the receipts that were promised, by choice."""
        return tuple(_digest(self, choice) for choice in range(self.choices))


def kept_digest(receipt: Receipt) -> bytes:
    """32 bytes that a receipt and a promise that it keeps have in common, to look receipts up by."""
    return _digest(receipt, receipt.sampling.choice)


def _terms(of: Promise | Receipt) -> tuple[Any, ...]:
    return of.tenant, of.request_id, of.nonce, of.base_cid, of.profile_cid, of.prompt.to_document()


def _digest(of: Promise | Receipt, choice: int) -> bytes:
    return hashlib.sha256(canonical([*_terms(of), choice])).digest()


def sign_promise(promise: Promise, key: Signer) -> Envelope:
    """Raises SignatureError for a key of another role."""
    if key.role != _ROLE:
        raise SignatureError(f"a key of role {key.role} may not sign a promise")
    return sign(canonical(promise.to_document()), PAYLOAD_TYPE, key)


def read_promise(data: bytes) -> Promise:
    """The promise in a DSSE envelope whose signature nobody has checked. Raises FormatError."""
    envelope = Envelope.from_bytes(data)
    if envelope.payload_type != PAYLOAD_TYPE:
        raise FormatError("payloadType", f"expected {PAYLOAD_TYPE}, got {envelope.payload_type!r}")
    return Promise.from_document(parse(envelope.payload, "payload"))


def open_promise(data: bytes, trusted: TrustedKeys) -> Promise:
    """The promise, if one trusted key of role receipts signed it. Raises FormatError, SignatureError."""
    promise, envelope = read_promise(data), Envelope.from_bytes(data)
    if len(envelope.signatures) != 1:
        raise SignatureError(f"expected one signature, got {len(envelope.signatures)}")
    signature = envelope.signatures[0]
    key = trusted.find(_ROLE, signature.key_id)
    if key is None:
        raise SignatureError(f"{signature.key_id or 'a key without id'} is not trusted to sign a promise")
    key.verify(pae(envelope.payload_type, envelope.payload), signature.signature)
    key.scope.check(promise)
    return promise

"""Promises: a server signs, before it answers, which receipts the log will hold and by when. The log's signed answer to
a promise names the receipts in its tree.

A caller who may not read the whole log cannot show that a receipt is missing from it. The log can, by its signature: an
answer without a receipt that was due proves the omission to all who trust the keys of promise and log.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from msgspec import Meta
from msgspec.structs import replace

from ledger.documents.receipt import PromptPart, Receipt
from ledger.encoding.canonical import canonical
from ledger.encoding.document import Cid, Count, Digest, Document, Nonce, Text, Time
from ledger.encoding.text_forms import digest, parse_timestamp
from ledger.errors import FormatError, SignatureError
from ledger.keys.envelope import Envelope, pae, sign, verify
from ledger.keys.signer import Signer
from ledger.keys.trusted_keys import TrustedKeys

PAYLOAD_TYPE = "application/vnd.kolm.promise.v1+json"
ANSWER_TYPE = "application/vnd.kolm.promise_answer.v1+json"
MOST_CHOICES = 1024
"""The most choices of one promise: more than servers accept in one request, and few enough to list."""


class Promise(Document, tag="kolm.promise.v1", frozen=True):
    """A `kolm.promise.v1` document, signed by a key of role `receipts`. The caller keeps it; the log does not hold it.

    The log will hold one receipt for each of `choices` by `due`, with this tenant, request and prompt commitment.
    """

    promised_at: Time
    due: Time
    tenant: Text
    request_id: Text
    nonce: Nonce | None
    base_cid: Cid
    profile_cid: Cid
    prompt: PromptPart
    choices: Annotated[int, Meta(ge=1, le=MOST_CHOICES)]

    def check(self) -> None:
        if parse_timestamp(self.due) < parse_timestamp(self.promised_at):
            raise FormatError("due", "is before promised_at")

    def covers(self, receipt: Receipt) -> bool:
        """Whether the promise covers this receipt."""
        return receipt.sampling.choice < self.choices and _terms(receipt) == _terms(self)

    def digests(self) -> tuple[bytes, ...]:
        """`kept_digest` of the promised receipts, by choice."""
        return tuple(_digest(self, choice) for choice in range(self.choices))


def kept_digest(receipt: Receipt) -> bytes:
    """A key of 32 bytes that finds the receipts of a promise."""
    return _digest(receipt, receipt.sampling.choice)


def _terms(of: Promise | Receipt) -> tuple[Any, ...]:
    """The members that promise and receipt have in common. Cached tokens are not known before the answer."""
    prompt = replace(of.prompt, cached_tokens=None)
    return of.tenant, of.request_id, of.nonce, of.base_cid, of.profile_cid, prompt.to_document()


def _digest(of: Promise | Receipt, choice: int) -> bytes:
    return hashlib.sha256(canonical([*_terms(of), choice])).digest()


class PromiseAnswer(Document, tag="kolm.promise_answer.v1", frozen=True):
    """A `kolm.promise_answer.v1` document, signed by a key of role `log`; the log does not hold it.

    `promise` is the digest of the promise's canonical envelope. `entries` has the index of the promised receipt of each
    choice, None if the tree of `tree_size` entries with `root_hash` holds none.
    """

    promise: Digest
    tree_size: Count
    root_hash: Digest
    entries: Annotated[tuple[Count | None, ...], Meta(min_length=1, max_length=MOST_CHOICES)]
    answered_at: Time

    @property
    def missing(self) -> list[int]:
        """Choices without a receipt in the tree."""
        return [choice for choice, index in enumerate(self.entries) if index is None]

    def breaks(self, promise: Promise) -> bool:
        """Whether receipts were missing after they were due, by the log's clock."""
        return bool(self.missing) and parse_timestamp(self.answered_at) > parse_timestamp(promise.due)


def sign_promise(promise: Promise, key: Signer) -> Envelope:
    """Raises SignatureError for a key of another role."""
    return _signed(promise, PAYLOAD_TYPE, "receipts", key)


def sign_answer(answer: PromiseAnswer, key: Signer) -> Envelope:
    """Raises SignatureError for a key of another role."""
    return _signed(answer, ANSWER_TYPE, "log", key)


def _signed(document: Promise | PromiseAnswer, payload_type: str, role: str, key: Signer) -> Envelope:
    if key.role != role:
        raise SignatureError(f"a key of role {key.role} may not sign a {document.type_name()}")
    return sign(document.to_bytes(), payload_type, key)


def read_promise(data: bytes) -> Promise:
    """The promise in a DSSE envelope, without a check of its signature. Raises FormatError."""
    return Promise.from_bytes(_envelope(data, PAYLOAD_TYPE).payload)


def _envelope(data: bytes, payload_type: str) -> Envelope:
    envelope = Envelope.from_bytes(data)
    if envelope.payload_type != payload_type:
        raise FormatError("payloadType", f"expected {payload_type}, got {envelope.payload_type!r}")
    return envelope


def open_promise(data: bytes, trusted: TrustedKeys) -> Promise:
    """The promise, if one trusted key of role receipts signed it. Raises FormatError, SignatureError."""
    promise, envelope = read_promise(data), Envelope.from_bytes(data)
    if len(envelope.signatures) != 1:
        raise SignatureError(f"expected one signature, got {len(envelope.signatures)}")
    signature = envelope.signatures[0]
    key = trusted.find("receipts", signature.key_id)
    if key is None:
        raise SignatureError(f"{signature.key_id or 'a key without id'} is not trusted to sign a promise")
    key.verify(pae(envelope.payload_type, envelope.payload), signature.signature)
    key.scope.check(promise)
    return promise


def promise_digest(data: bytes) -> str:
    """The digest of a promise's envelope in any layout. Raises FormatError."""
    return digest(Envelope.from_bytes(data).to_bytes())


def open_answer(data: bytes, promise: bytes, trusted: TrustedKeys) -> PromiseAnswer:
    """The answer to this promise, if a trusted key of the log signed it. Raises FormatError, SignatureError."""
    answer = PromiseAnswer.from_bytes(verify(_envelope(data, ANSWER_TYPE), trusted, "log"))
    if answer.promise != promise_digest(promise):
        raise FormatError("promise", "is another than the promise at hand")
    return answer

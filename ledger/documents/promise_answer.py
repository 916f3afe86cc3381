"""The log's signed answer to a promise: which of the promised receipts its tree holds.

A caller who may not read the whole log cannot show that a receipt is missing from it. The log can, by its signature:
an answer without a receipt that was due proves the omission to everybody who trusts the keys of promise and log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ledger.documents.promise import MOST_CHOICES, Promise
from ledger.encoding.canonical import canonical, parse
from ledger.encoding.digest import digest
from ledger.encoding.fields import Fields
from ledger.encoding.timestamp import parse_timestamp
from ledger.errors import FormatError, SignatureError
from ledger.keys.envelope import Envelope, sign, verify
from ledger.keys.signer import Signer
from ledger.keys.trusted_keys import TrustedKeys

PAYLOAD_TYPE = "application/vnd.kolm.promise_answer.v1+json"
_ROLE = "log"


@dataclass(frozen=True, slots=True)
class PromiseAnswer:
    """A `kolm.promise_answer.v1` document, signed by a key of role `log`; the log does not hold it.

    `promise` is the digest of the promise's canonical envelope. `entries` are the indexes of the promised receipts by
    choice, None where the tree of `tree_size` entries with `root_hash` holds none.
    """

    TYPE: ClassVar[str] = "kolm.promise_answer.v1"

    promise: str
    tree_size: int
    root_hash: str
    entries: tuple[int | None, ...]
    answered_at: str

    def to_document(self) -> dict[str, Any]:
        return {
            "type": self.TYPE,
            "promise": self.promise,
            "tree_size": self.tree_size,
            "root_hash": self.root_hash,
            "entries": list(self.entries),
            "answered_at": self.answered_at,
        }

    @classmethod
    def from_document(cls, document: object) -> PromiseAnswer:
        """The answer that a parsed JSON value holds. Raises FormatError naming the first field that is wrong."""
        fields = Fields(document)
        fields.constant("type", cls.TYPE)
        answer = cls(
            promise=fields.digest("promise"),
            tree_size=fields.integer("tree_size"),
            root_hash=fields.digest("root_hash"),
            entries=_entries(fields),
            answered_at=fields.time("answered_at"),
        )
        fields.close()
        return answer

    @property
    def missing(self) -> list[int]:
        """Choices without a receipt in the tree."""
        return [choice for choice, index in enumerate(self.entries) if index is None]

    def breaks(self, promise: Promise) -> bool:
        """Whether receipts were missing once they were due, by the log's own clock."""
        return bool(self.missing) and parse_timestamp(self.answered_at) > parse_timestamp(promise.due)


def promise_digest(data: bytes) -> str:
    """The digest of a promise's envelope, however it is laid out. Raises FormatError."""
    return digest(Envelope.from_bytes(data).to_bytes())


def sign_answer(answer: PromiseAnswer, key: Signer) -> Envelope:
    """Raises SignatureError for a key of another role."""
    if key.role != _ROLE:
        raise SignatureError(f"a key of role {key.role} may not answer for the log")
    return sign(canonical(answer.to_document()), PAYLOAD_TYPE, key)


def open_answer(data: bytes, promise: bytes, trusted: TrustedKeys) -> PromiseAnswer:
    """The answer to this promise, if a trusted key of the log signed it. Raises FormatError, SignatureError."""
    envelope = Envelope.from_bytes(data)
    if envelope.payload_type != PAYLOAD_TYPE:
        raise FormatError("payloadType", f"expected {PAYLOAD_TYPE}, got {envelope.payload_type!r}")
    answer = PromiseAnswer.from_document(parse(verify(envelope, trusted, _ROLE), "payload"))
    if answer.promise != promise_digest(promise):
        raise FormatError("promise", "is another than the promise at hand")
    return answer


def _entries(fields: Fields) -> tuple[int | None, ...]:
    path, values = fields.path("entries"), fields.array("entries")
    if not 1 <= len(values) <= MOST_CHOICES:
        raise FormatError(path, f"expected 1 to {MOST_CHOICES} indexes")
    if not all(value is None or (type(value) is int and 0 <= value < 2**53) for value in values):
        raise FormatError(path, "expected indexes, or null")
    return tuple(values)

"""The kinds of document that the log takes: payload type, reader and the role that may sign each.

A document of one kind can never pass for another: the payload type is under the signature (DSSE) and in the document. A
verifier accepts a kind that a later version has added: it checks its place and that a trusted key has signed it,
reports it, and draws nothing from it. The ledger takes known kinds only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, get_args

from msgspec.structs import replace

from ledger.documents.audit import AuditPolicy, Draw, Verdict
from ledger.documents.draft_head import DraftHeadPublication, DraftHeadWithdrawal, KScore
from ledger.documents.engine_profile import EngineProfile
from ledger.documents.erasure import Erasure, Expiry, Retention
from ledger.documents.halt import Halt, Resume
from ledger.documents.key_entry import KeyEntry
from ledger.documents.receipt import Receipt
from ledger.encoding.canonical import parse
from ledger.errors import FormatError, SignatureError, SignaturesMissing
from ledger.keys.ed25519 import ROLES, PublicKey
from ledger.keys.envelope import Envelope, pae, sign
from ledger.keys.key_scope import EVERYTHING
from ledger.keys.signer import Signer
from ledger.keys.trusted_keys import TrustedKeys

UNKNOWN = "unknown"
"""The kind of an UnknownDocument."""

_PAYLOAD_TYPE = re.compile(r"application/vnd\.(kolm\.[a-z][a-z0-9_]{0,63}\.v[0-9]{1,4})\+json")

_Known = (
    Receipt
    | Verdict
    | Halt
    | Resume
    | Erasure
    | KeyEntry
    | DraftHeadPublication
    | DraftHeadWithdrawal
    | KScore
    | AuditPolicy
    | Draw
    | Retention
    | Expiry
    | EngineProfile
)


@dataclass(frozen=True, slots=True)
class UnknownDocument:
    """A document of a kind that this version does not know; `type` is its name, as `kolm.receipt.v1`."""

    SIGNERS: ClassVar = ROLES

    type: str


Document = _Known | UnknownDocument


@cache
def _kind(document_type: type[_Known]) -> str:
    return document_type.type_name().removeprefix("kolm.").removesuffix(".v1")


KINDS: dict[str, type[_Known]] = {_kind(document_type): document_type for document_type in get_args(_Known)}
_BY_TYPE = {document_type.type_name(): document_type for document_type in KINDS.values()}


def kind_of(document: Document) -> str:
    """The short name of a document's kind, as in `KINDS`; UNKNOWN for other kinds."""
    return UNKNOWN if isinstance(document, UnknownDocument) else _kind(type(document))


def payload_type(kind: str) -> str:
    """The DSSE payload type of a kind."""
    return f"application/vnd.kolm.{kind}.v1+json"


def sign_document(document: Document, key: Signer) -> Envelope:
    """Sign a document, after checking that it reads back as itself and that the key's role may sign its kind.

    Raises FormatError for a document that no reader would accept, SignatureError for a key of another role.
    """
    if isinstance(document, UnknownDocument):
        raise FormatError("document", f"{document.type} is not a kind that this version signs")
    if key.role not in document.SIGNERS:
        raise SignatureError(f"a key of role {key.role} may not sign a {kind_of(document)}")
    envelope = sign(document.to_bytes(), payload_type(kind_of(document)), key)
    if read_document(envelope) != document:
        raise FormatError("document", "does not read back as itself; use floats, tuples and plain text as declared")
    return envelope


def sign_rotation(entry: KeyEntry, new: Signer, *others: Signer) -> Envelope:
    """Sign a key entry that replaces a key, with the new key, and the old key or enough operators' keys."""
    envelope = sign_document(entry, new)
    more = (signature for key in others for signature in sign_document(entry, key).signatures)
    return replace(envelope, signatures=(*envelope.signatures, *more))


def read_document(envelope: Envelope) -> Document:
    """The document in an envelope whose signatures have not been checked. Raises FormatError."""
    named = _PAYLOAD_TYPE.fullmatch(envelope.payload_type)
    if named is None:
        raise FormatError("payloadType", f"{envelope.payload_type!r} is not a type of document that a log holds")
    known = _BY_TYPE.get(named[1])
    if known is not None:
        return known.from_bytes(envelope.payload)
    document = parse(envelope.payload, "payload")
    if not isinstance(document, dict) or document.get("type") != named[1]:
        raise FormatError("type", f"expected {named[1]!r}")
    return UnknownDocument(named[1])


def add_signature(envelope: Envelope, key: Signer) -> Envelope:
    """Add a key's signature to a document; the same key again changes nothing. Raises FormatError for an unknown
    document, SignatureError for a key of a role that may not sign it.
    """
    more = sign_document(read_document(envelope), key)
    return replace(envelope, signatures=tuple(dict.fromkeys((*envelope.signatures, *more.signatures))))


def open_document(envelope: Envelope, trusted: TrustedKeys, index: int | None = None) -> Document:
    """The document in an envelope, if every signature on it is by a different key that may sign its kind, and there are
    enough of them: a resume needs as many operators as the trusted threshold at entry `index`. Every trusted key may
    sign an unknown kind, whatever its scope.

    Stricter than DSSE, which skips signatures that it cannot verify: in the log, an added junk signature would make
    other bytes of the same receipt, and every signature there has a known signer. Raises FormatError, SignatureError.
    """
    document = read_document(envelope)
    signers = [_signer(envelope, place, document, trusted) for place in range(len(envelope.signatures))]
    if len(signers) > 1 and len(set(signers)) != len(signers):
        raise SignatureError("one key has signed twice")
    if isinstance(document, KeyEntry):
        _check_key_entry(document, signers, trusted, index)
    if isinstance(document, Resume) and len(signers) < (needed := trusted.threshold.at(index)):
        raise SignaturesMissing(f"{len(signers)} of the {needed} operators that have to sign a resume have signed it")
    return document


def _check_key_entry(document: KeyEntry, signers: list[PublicKey], trusted: TrustedKeys, index: int | None) -> None:
    if document.public_key not in trusted.keys(document.role):
        raise SignatureError(f"{document.public_key.key_id} is not trusted for role {document.role}")
    if document.replaces is None:
        return
    if document.public_key not in signers:
        raise SignatureError("a rotation must be signed by the new key")
    operators = {*trusted.keys("operator")} - {document.public_key}
    # Otherwise one operator could replace all keys by his own, and resume or publish alone.
    by_holder = trusted.find(document.role, document.replaces) in signers
    if not by_holder and len(operators.intersection(signers)) < (needed := trusted.threshold.at(index)):
        raise SignatureError(f"a key is replaced by its own holder or by {needed} of the operators: neither signed")


def _signer(envelope: Envelope, place: int, document: Document, trusted: TrustedKeys) -> PublicKey:
    signature = envelope.signatures[place]
    for role in document.SIGNERS:
        key = trusted.find(role, signature.key_id)
        if key is not None:
            key.verify(pae(envelope.payload_type, envelope.payload), signature.signature)
            # A successor inherits the scope, and nothing is drawn from an unknown document.
            if key.scope != EVERYTHING and not isinstance(document, KeyEntry | UnknownDocument):
                key.scope.check(document)
            return key
    raise SignatureError(
        f"signatures[{place}] is by {signature.key_id or 'a key without id'}, "
        f"which is not trusted to sign a {kind_of(document)}"
    )


def counted(kinds: Mapping[str, int]) -> str:
    """Entries by kind in words: `1 audit policy, 2 receipts`."""
    return ", ".join(f"{count} {_named(kind, count)}" for kind, count in sorted(kinds.items()))


def _named(kind: str, count: int) -> str:
    if kind == UNKNOWN:
        return "of a kind that this version does not know"
    name = kind.replace("_", " ")
    if count == 1:
        return name
    return f"{name.removesuffix('y')}ies" if name.endswith(("cy", "ry")) else f"{name}s"

"""DSSE v1 envelopes: signatures over exactly the transmitted payload bytes, and over the type that names their format.

Follows the DSSE protocol 1.0.0 (pre-authentication encoding, either base64 alphabet accepted, key ids are hints) and
its JSON envelope 0.1.0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from msgspec import Meta, field

from ledger.encoding.canonical import parse_json
from ledger.encoding.document import Part, read_plain
from ledger.errors import SignatureError
from ledger.keys.ed25519 import PublicKey
from ledger.keys.signer import Signer
from ledger.keys.trusted_keys import MOST_SIGNATURES, TrustedKeys

_TO_STANDARD_ALPHABET = str.maketrans("-_", "+/")


class Signature(Part, frozen=True):
    """One signature and the hint of its key's id; the hint is "" if the signer gave none."""

    key_id: Annotated[str, Meta(max_length=256)] = field(name="keyid", default="")
    signature: bytes = field(name="sig", default_factory=lambda: b"")


class Envelope(Part, frozen=True):
    """A payload with its signatures. Holding one proves nothing: call `verify`, then read what it returns.

    `to_bytes` is the DSSE JSON envelope in canonical form (RFC 8785, standard base64): one envelope, one byte string.
    """

    payload: bytes
    payload_type: Annotated[str, Meta(max_length=256)] = field(name="payloadType")
    signatures: Annotated[tuple[Signature, ...], Meta(min_length=1, max_length=MOST_SIGNATURES)]

    @classmethod
    def from_bytes(cls, data: bytes) -> Envelope:
        """Read a DSSE JSON envelope in any layout and either base64 alphabet. Raises FormatError."""
        return read_envelope(data)[0]

    @classmethod
    def from_document(cls, document: object, path: str = "") -> Envelope:
        """Read the parsed JSON object of an envelope; `path` is its place in the document. Raises FormatError."""
        return super().from_document(_in_one_spelling(document), path)


def read_envelope(data: bytes) -> tuple[Envelope, bytes]:
    """The envelope that `Envelope.from_bytes` reads, and its canonical bytes (`data` itself if it is canonical)."""
    plain = read_plain(Envelope, data)
    if plain is not None:
        return plain, data
    envelope = Envelope.from_document(parse_json(data, "envelope"))
    return envelope, envelope.to_bytes()


def pae(payload_type: str, payload: bytes) -> bytes:
    """The bytes that are signed: DSSE's pre-authentication encoding of type and payload."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign(payload: bytes, payload_type: str, key: Signer) -> Envelope:
    """An envelope with one signature by `key`."""
    signature = Signature(key.key_id, key.sign(pae(payload_type, payload)))
    return Envelope(payload, payload_type, (signature,))


def verify(envelope: Envelope, trusted: TrustedKeys, role: str, threshold: int = 1) -> bytes:
    """The payload, if at least `threshold` different keys trusted for `role` signed it. Raises SignatureError.

    Other signatures are ignored, as DSSE requires ("Multi-signature Verification").
    """
    signers = verified_signers(envelope, trusted.keys(role))
    if len(signers) < threshold:
        raise SignatureError(f"{len(signers)} of {threshold} needed signatures are by keys trusted for role {role}")
    return envelope.payload


def verified_signers(envelope: Envelope, keys: Iterable[PublicKey]) -> frozenset[PublicKey]:
    """The keys among `keys` that have signed the envelope. Key ids are ignored: they are unsigned hints."""
    message = pae(envelope.payload_type, envelope.payload)
    return frozenset(
        key for key in keys if any(_holds(key, message, signature.signature) for signature in envelope.signatures)
    )


def _holds(key: PublicKey, message: bytes, signature: bytes) -> bool:
    try:
        key.verify(message, signature)
    except SignatureError:
        return False
    return True


def _in_one_spelling(document: object) -> object:
    """The document with base64 in the standard alphabet and without empty hints; DSSE takes both."""
    if not isinstance(document, dict):
        return document
    parts = document.get("signatures")
    more = {"signatures": [_in_one_alphabet(part, "sig") for part in parts]} if isinstance(parts, list) else {}
    return _in_one_alphabet(document, "payload") | more


def _in_one_alphabet(part: Any, name: str) -> Any:
    if not isinstance(part, dict):
        return part
    return {
        member: value.translate(_TO_STANDARD_ALPHABET) if member == name and isinstance(value, str) else value
        for member, value in part.items()
        if (member, value) != ("keyid", "")
    }

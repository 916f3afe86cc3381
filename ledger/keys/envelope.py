"""DSSE v1 envelopes: signatures over exactly the payload bytes that travel, and over the type that names their format.

Follows the DSSE protocol 1.0.0 (pre-authentication encoding, either base64 alphabet accepted, key ids are hints) and
its JSON envelope 0.1.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ledger.encoding.base64_text import decode_base64, encode_base64
from ledger.encoding.canonical import canonical, parse_json
from ledger.encoding.fields import Fields
from ledger.errors import FormatError, SignatureError
from ledger.keys.ed25519 import PublicKey
from ledger.keys.signer import Signer
from ledger.keys.threshold import MOST_SIGNATURES
from ledger.keys.trusted_keys import TrustedKeys

MAX_SIGNATURES = MOST_SIGNATURES

_PLAIN = re.compile(
    rb'\{"payload":"([A-Za-z0-9+/=]*)","payloadType":"([ !#-\[\]-~]{0,256})",'
    rb'"signatures":\[\{"keyid":"([ !#-\[\]-~]{1,256})","sig":"([A-Za-z0-9+/=]*)"\}\]\}'
)
"""The canonical bytes of an envelope with one signature and no text that JSON would escape, as nearly all of them are.

Each of its JSON strings stands for itself, so that they are read without a JSON parser.
"""

_TO_STANDARD_ALPHABET = str.maketrans("-_", "+/")


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature and the hint by which key; the hint is "" where the signer gave none."""

    key_id: str
    signature: bytes


@dataclass(frozen=True, slots=True)
class Envelope:
    """A payload with its signatures. Holding one proves nothing: call `verify`, then read what it returns."""

    payload: bytes
    payload_type: str
    signatures: tuple[Signature, ...]

    def to_document(self) -> dict[str, Any]:
        return {
            "payload": encode_base64(self.payload),
            "payloadType": self.payload_type,
            "signatures": [_signature_document(signature) for signature in self.signatures],
        }

    def to_bytes(self) -> bytes:
        """The DSSE JSON envelope in canonical form (RFC 8785, standard base64): one envelope, one byte string."""
        return canonical(self.to_document())

    @classmethod
    def from_bytes(cls, data: bytes) -> Envelope:
        """Read a DSSE JSON envelope in any layout and either base64 alphabet. Raises FormatError."""
        return read_envelope(data)[0]

    @classmethod
    def from_document(cls, document: object, path: str = "") -> Envelope:
        """Read the parsed JSON object of an envelope; `path` is where it stands in its document. Raises FormatError."""
        fields = Fields(document, path)
        envelope = cls(
            payload=_base64_either(fields, "payload"),
            payload_type=fields.text("payloadType", empty=True),
            signatures=_signatures(fields),
        )
        fields.close()
        return envelope


def read_envelope(data: bytes) -> tuple[Envelope, bytes]:
    """The envelope that `Envelope.from_bytes` reads, and its canonical bytes: `data` where it is canonical."""
    plain = _PLAIN.fullmatch(data)
    if plain is None:
        envelope = Envelope.from_document(parse_json(data, "envelope"))
        return envelope, envelope.to_bytes()
    payload, payload_type, key_id, signature = (text.decode("ascii") for text in plain.groups())
    read = decode_base64(payload, "payload")
    signed = Signature(key_id, decode_base64(signature, "signatures[0].sig"))
    return Envelope(read, payload_type, (signed,)), data


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

    Other signatures are skipped over, as DSSE asks ("Multi-signature Verification").
    """
    signers = verified_signers(envelope, trusted.keys(role))
    if len(signers) < threshold:
        raise SignatureError(f"{len(signers)} of {threshold} needed signatures are by keys trusted for role {role}")
    return envelope.payload


def verified_signers(envelope: Envelope, keys: Iterable[PublicKey]) -> frozenset[PublicKey]:
    """The keys among `keys` that have signed the envelope. Key ids are hints that anybody can write: not looked at."""
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


def _signature_document(signature: Signature) -> dict[str, str]:
    value = {"sig": encode_base64(signature.signature)}
    return value | {"keyid": signature.key_id} if signature.key_id else value


def _signatures(fields: Fields) -> tuple[Signature, ...]:
    path = fields.path("signatures")
    values = fields.array("signatures")
    if not 1 <= len(values) <= MAX_SIGNATURES:
        raise FormatError(path, f"expected 1 to {MAX_SIGNATURES} signatures, got {len(values)}")
    return tuple(_signature(Fields(value, f"{path}[{place}]")) for place, value in enumerate(values))


def _signature(fields: Fields) -> Signature:
    hint = fields.text("keyid", empty=True) if fields.has("keyid") else ""
    signature = Signature(hint, _base64_either(fields, "sig"))
    fields.close()
    return signature


def _base64_either(fields: Fields, name: str) -> bytes:
    text = fields.read(name)
    return decode_base64(text.translate(_TO_STANDARD_ALPHABET) if isinstance(text, str) else text, fields.path(name))

"""COSE_Sign1 (RFC 9052) with Ed25519, in deterministic CBOR (RFC 8949 section 4.2): the same input, the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cbor2

from ledger.errors import FormatError
from ledger.keys.signer import Signer

ALGORITHM, CONTENT_TYPE, KEY_ID, CLAIMS = 1, 3, 4, 15
"""Labels of header parameters (RFC 9052 section 3.1; 15: RFC 9597)."""

ISSUER, SUBJECT = 1, 2
"""Labels of claims (RFC 8392)."""

_EDDSA = -8
_TAG = 18
_LONGEST = 1 << 20  # the most bytes to read: an entry has 64 KiB at most


def encode(value: object) -> bytes:
    return cbor2.dumps(value, canonical=True)


def decode(data: bytes) -> Any:
    """The value of deterministic CBOR. Raises FormatError for other bytes."""
    try:
        value = cbor2.loads(data[:_LONGEST])
        deterministic = encode(value) == data
    except Exception as error:  # a reader of untrusted bytes may raise any of these
        raise FormatError("statement", f"is not CBOR: {type(error).__name__}") from None
    if not deterministic:
        raise FormatError("statement", "expected deterministic CBOR")
    return value


@dataclass(frozen=True, slots=True)
class Sign1:
    """The parts of a COSE_Sign1; `payload` is None if it is detached."""

    protected: bytes
    unprotected: Mapping[Any, Any]
    payload: bytes | None
    signature: bytes


def decode_message(data: bytes) -> Sign1:
    """The parts of a tagged COSE_Sign1 in deterministic CBOR. Raises FormatError for anything else."""
    tag = decode(data)
    if not isinstance(tag, cbor2.CBORTag) or tag.tag != _TAG:
        raise FormatError("statement", "expected a tagged COSE_Sign1")
    match tag.value:
        case [bytes() as protected, Mapping() as unprotected, bytes() | None as payload, bytes() as signature]:
            return Sign1(protected, unprotected, payload, signature)
    raise FormatError("statement", "expected a protected and an unprotected header, a payload and a signature")


def protected_header(key_id: str, issuer: str, subject: str, more: dict[int, Any]) -> bytes:
    """The signed header: EdDSA, the key, issuer and subject."""
    claims = {ISSUER: issuer, SUBJECT: subject}
    return encode({ALGORITHM: _EDDSA, KEY_ID: key_id.encode(), CLAIMS: claims} | more)


def to_be_signed(protected: bytes, payload: bytes) -> bytes:
    """The Sig_structure (RFC 9052 section 4.4). Its first bytes differ from a DSSE's and from a signed note's."""
    return encode(["Signature1", protected, b"", payload])


def sign(protected: bytes, payload: bytes, key: Signer) -> bytes:
    """64 bytes."""
    return key.sign(to_be_signed(protected, payload))


def message(protected: bytes, unprotected: dict[int, Any], payload: bytes | None, signature: bytes) -> bytes:
    """A tagged COSE_Sign1; `payload` None is a detached payload."""
    return encode(cbor2.CBORTag(_TAG, [protected, unprotected, payload, signature]))

"""Content identifiers: `cidv1:sha256:<64 lowercase hex digits>`, the SHA-256 of the named bytes, never truncated.

Other tools know them as multiformats CIDs, version 1: multibase `b` (base32, lower case, no padding), codec raw,
multihash sha2-256. That form is an alias; nothing signed ever holds it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

from ledger.encoding.canonical import canonical
from ledger.errors import FormatError

_FORM = re.compile(r"cidv1:sha256:([0-9a-f]{64})")
_RAW_SHA2_256 = bytes((0x01, 0x55, 0x12, 0x20))
"""CID version 1, codec raw, multihash sha2-256 of 32 bytes."""


def cid(data: bytes) -> str:
    """The identifier of `data`."""
    return "cidv1:sha256:" + hashlib.sha256(data).hexdigest()


def cid_of_json(value: object) -> str:
    """The identifier of a JSON value: that of its canonical bytes (RFC 8785). Raises FormatError if it has none."""
    return cid(canonical(value))


def parse_cid(text: object, field: str = "cid") -> bytes:
    """The 32 digest bytes that an identifier names. Raises FormatError for anything else."""
    match = _FORM.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise FormatError(field, "expected cidv1:sha256:<64 lowercase hex digits>")
    return bytes.fromhex(match.group(1))


def to_multiformats(text: str) -> str:
    """`cidv1:sha256:…` as `bafkrei…`. Raises FormatError."""
    packed = _RAW_SHA2_256 + parse_cid(text)
    return "b" + base64.b32encode(packed).decode("ascii").rstrip("=").lower()


def from_multiformats(text: object, field: str = "cid") -> str:
    """`bafkrei…` as `cidv1:sha256:…`. Raises FormatError for every other multiformats CID, and for every other text."""
    problem = "expected a multiformats CID, version 1, raw, sha2-256, in base32: bafkrei and 52 more characters"
    if not isinstance(text, str) or not text.startswith("b") or not text.isascii():
        raise FormatError(field, problem)
    try:
        packed = base64.b32decode(text[1:].upper() + "=" * (-len(text[1:]) % 8))
    except binascii.Error:
        raise FormatError(field, problem) from None
    identifier = "cidv1:sha256:" + packed[len(_RAW_SHA2_256) :].hex()
    if not packed.startswith(_RAW_SHA2_256) or len(packed) != 36 or to_multiformats(identifier) != text:
        raise FormatError(field, problem)
    return identifier

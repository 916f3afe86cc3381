"""Base64 (RFC 4648 §4) as text, both ways, without the leniency of the standard library's decoder."""

from __future__ import annotations

import base64
import binascii

from ledger.errors import FormatError


def encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def decode_base64(text: object, field: str) -> bytes:
    """The bytes of standard, padded base64. Raises FormatError, also for a second spelling of the same bytes."""
    if not isinstance(text, str):
        raise FormatError(field, "expected base64 text")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise FormatError(field, f"is not base64: {error}") from None
    if encode_base64(data) != text:
        raise FormatError(field, "is not base64 in canonical form (RFC 4648 §3.5)")
    return data

"""Content identifiers: `cidv1:sha256:<64 lowercase hex digits>`, the SHA-256 of the named bytes, never truncated."""

from __future__ import annotations

import hashlib
import re

from ledger.encoding.canonical import canonical
from ledger.errors import FormatError

_FORM = re.compile(r"cidv1:sha256:([0-9a-f]{64})")


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

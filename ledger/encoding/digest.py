"""The text form of a SHA-256 digest inside documents: `sha256:<64 lowercase hex digits>`, never truncated."""

from __future__ import annotations

import hashlib
import re

from ledger.errors import FormatError

_FORM = re.compile(r"sha256:([0-9a-f]{64})")

ZERO_DIGEST = "sha256:" + "0" * 64
"""The digest where there is nothing to hash: the `previous` of entry 0."""


def digest(data: bytes) -> str:
    """SHA-256 of `data` in text form."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_text(raw: bytes) -> str:
    """A SHA-256 hash in text form, the reverse of `parse_digest`. Raises FormatError for other than 32 bytes."""
    if len(raw) != 32:
        raise FormatError("digest", f"expected 32 bytes, got {len(raw)}")
    return "sha256:" + raw.hex()


def parse_digest(text: object, field: str = "digest") -> bytes:
    """The 32 bytes of a digest in text form. Raises FormatError for anything else."""
    match = _FORM.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise FormatError(field, "expected sha256:<64 lowercase hex digits>")
    return bytes.fromhex(match.group(1))

"""Salted commitments to token ids, so that a receipt binds a prompt and an output without revealing them.

    commitment = SHA-256(domain ‖ 0x00 ‖ salt ‖ token ids as little-endian u32)

The salt (32 fresh random bytes for each commitment) lives with the ids in the erasable content table. With the
salt erased the commitment says nothing about the ids, not even to somebody who guesses them, while every proof
over the receipt holds.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Sequence

from ledger.errors import FormatError

PROMPT_DOMAIN = "kolm.prompt.v1"
OUTPUT_DOMAIN = "kolm.output.v1"
SALT_BYTES = 32


def new_salt() -> bytes:
    """32 bytes from the operating system's generator."""
    return secrets.token_bytes(SALT_BYTES)


def commit(domain: str, salt: bytes, token_ids: Sequence[int]) -> str:
    """The commitment to `token_ids` as `sha256:<hex>`. Raises FormatError for a bad salt and for ids beyond u32."""
    if len(salt) != SALT_BYTES:
        raise FormatError("salt", f"expected {SALT_BYTES} bytes, got {len(salt)}")
    state = hashlib.sha256(domain.encode("ascii") + b"\x00" + salt)
    state.update(_u32le(token_ids))
    return "sha256:" + state.hexdigest()


def _u32le(token_ids: Sequence[int]) -> bytes:
    try:
        return struct.pack(f"<{len(token_ids)}I", *token_ids)
    except struct.error:
        raise FormatError("token_ids", "expected integers from 0 to 2^32 - 1") from None

"""Salted commitments to token ids, so that a receipt binds a prompt and an output without revealing them.

    commitment = SHA-256(domain ‖ 0x00 ‖ salt ‖ token ids as little-endian u32, or text as UTF-8)

The text of a prompt or an output has a separate commitment, with the salt of its token ids, so that the sender or
receiver of a text can open it without a tokenizer; a conversation's text is the canonical JSON (RFC 8785) of its
messages, [{"content": …, "role": …}, …].

The text of a constraint on the output (a JSON schema, a grammar) also has a commitment, with the salt of the prompt.

The salt (32 fresh random bytes for each commitment) lives with the ids in the erasable content table. After the salt is
erased, the commitment reveals nothing about the ids, not even to a reader who guesses them, and every proof over the
receipt stays valid.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Sequence

from ledger.errors import FormatError

PROMPT_DOMAIN = "kolm.prompt.v1"
OUTPUT_DOMAIN = "kolm.output.v1"
PROMPT_TEXT_DOMAIN = "kolm.prompt-text.v1"
MESSAGES_DOMAIN = "kolm.messages.v1"
OUTPUT_TEXT_DOMAIN = "kolm.output-text.v1"
STRUCTURED_OUTPUTS_DOMAIN = "kolm.structured-outputs.v1"
SALT_BYTES = 32


def new_salt() -> bytes:
    """32 bytes from the operating system's generator."""
    return secrets.token_bytes(SALT_BYTES)


def commit(domain: str, salt: bytes, token_ids: Sequence[int]) -> str:
    """The commitment to `token_ids` as `sha256:<hex>`. Raises FormatError for a bad salt and for ids beyond u32."""
    return _commit(domain, salt, _u32le(token_ids))


def commit_text(domain: str, salt: bytes, text: str) -> str:
    """The commitment to a text as `sha256:<hex>`. Raises FormatError for a bad salt and for a lone surrogate."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise FormatError("text", "expected text in UTF-8, got a lone surrogate") from None
    return _commit(domain, salt, data)


def _commit(domain: str, salt: bytes, data: bytes) -> str:
    if len(salt) != SALT_BYTES:
        raise FormatError("salt", f"expected {SALT_BYTES} bytes, got {len(salt)}")
    return "sha256:" + hashlib.sha256(domain.encode("ascii") + b"\x00" + salt + data).hexdigest()


def _u32le(token_ids: Sequence[int]) -> bytes:
    try:
        return struct.pack(f"<{len(token_ids)}I", *token_ids)
    except struct.error:
        raise FormatError("token_ids", "expected integers from 0 to 2^32 - 1") from None

"""Sealing of contents at rest, each with its own key. Destroying the key erases the content in every copy of the
database.

    sealed    = nonce ‖ AES-256-GCM(key, nonce, plaintext, associated data: the receipt's id)
    plaintext = prompt salt ‖ output salt ‖ number of prompt ids ‖ prompt ids ‖ output ids

If the output followed a constraint, the number of prompt ids has its highest bit set, the number of output ids precedes
the output ids, and the constraint's text in UTF-8 follows them.

Nonces are 12 random bytes, salts 32 bytes, numbers little-endian u32 (NIST SP 800-38D; a key seals one content).
"""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ledger.documents.content import Content
from ledger.encoding.commitment import SALT_BYTES
from ledger.errors import FormatError

KEY_BYTES = 32
KEY_ID_BYTES = 16
_TIME_BYTES = 6
_NONCE_BYTES = 12
_HEAD = struct.Struct(f"<{SALT_BYTES}s{SALT_BYTES}sI")
_CONSTRAINED = 1 << 31


@dataclass(frozen=True, slots=True)
class ContentKey:
    """The key of one content. Its id is the time in milliseconds, so that new ids are neighbours in an index, and 10
    random bytes.
    """

    key_id: bytes
    key: bytes = field(repr=False)

    @classmethod
    def generate(cls, count: int) -> list[ContentKey]:
        """New keys, from one request for random bytes to the operating system."""
        made = (time.time_ns() // 1_000_000).to_bytes(_TIME_BYTES, "big")
        drawn, size = KEY_ID_BYTES - _TIME_BYTES, KEY_ID_BYTES - _TIME_BYTES + KEY_BYTES
        random = secrets.token_bytes(count * size)
        each = (random[at : at + size] for at in range(0, count * size, size))
        return [cls(made + one[:drawn], one[drawn:]) for one in each]


class ContentKeys(Protocol):
    """The keys of a ledger's contents, in a database that backups leave out.

    Durability: a key that `take` gave out survives a crash, a key that `destroy` took does not come back. Concurrency:
    one thread takes and destroys; any finds. Every method may raise StoreError.
    """

    def take(self, count: int) -> Sequence[ContentKey]:
        """Keys that were never taken before."""
        ...

    def find(self, key_id: bytes) -> ContentKey | None:
        """A key by its id; None if it was destroyed, or is kept elsewhere."""
        ...

    def destroy(self, key_ids: Sequence[bytes]) -> None:
        """Destroy keys; ids of missing keys are ignored."""
        ...

    def check_held(self) -> None:
        """`store.EntryStore.check_held`, of the place of the keys."""
        ...

    def is_empty(self) -> bool:
        """Whether the database has no keys."""
        ...

    def close(self) -> None:
        """Closing twice changes nothing."""
        ...


def packed(content: Content) -> bytes:
    """The plaintext of a content, as it is sealed."""
    prompt, output, constraint = content.prompt_token_ids, content.output_token_ids, content.structured_outputs
    text, mark, count = b"", 0, tuple[int, ...]()
    if constraint is not None:
        text, mark, count = constraint.encode(), _CONSTRAINED, (len(output),)
    ids = (*prompt, *count, *output)
    head = _HEAD.pack(content.prompt_salt, content.output_salt, len(prompt) | mark)
    return head + struct.pack(f"<{len(ids)}I", *ids) + text


def unpacked(plaintext: bytes) -> Content:
    """The reverse."""
    prompt_salt, output_salt, prompt_tokens = _HEAD.unpack_from(plaintext)
    constrained, prompt_tokens = prompt_tokens & _CONSTRAINED, prompt_tokens & ~_CONSTRAINED
    start = _HEAD.size + 4 * prompt_tokens
    prompt, rest = plaintext[_HEAD.size : start], plaintext[start:]
    if not constrained:
        return Content(prompt_salt, _ids(prompt), output_salt, _ids(rest))
    end = 4 + 4 * int.from_bytes(rest[:4], "little")
    return Content(prompt_salt, _ids(prompt), output_salt, _ids(rest[4:end]), rest[end:].decode())


def seal(plaintext: bytes, receipt_id: str, key: ContentKey) -> bytes:
    """Seal the content of a receipt. `key` must seal nothing else."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(key.key).encrypt(nonce, plaintext, receipt_id.encode("ascii"))


def unseal(sealed: bytes, receipt_id: str, key: ContentKey) -> Content:
    """Open a sealed content. Raises FormatError if it was not sealed with this key for this receipt, or was changed."""
    try:
        plaintext = AESGCM(key.key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], receipt_id.encode("ascii"))
    except (InvalidTag, ValueError):
        raise FormatError("sealed", "does not open with its key") from None
    return unpacked(plaintext)


def _ids(data: bytes) -> tuple[int, ...]:
    return tuple(number for (number,) in struct.iter_unpack("<I", data))

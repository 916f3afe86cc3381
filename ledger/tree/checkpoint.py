"""Checkpoints: signed heads of the Merkle tree, as C2SP tlog-checkpoint notes of origin, size and root.

This log has no extension lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ledger.encoding.text_forms import decode_base64, encode_base64
from ledger.errors import FormatError
from ledger.keys.ed25519 import PublicKey
from ledger.keys.note import Note, check_key_name, sign_note, verify_note
from ledger.keys.signer import Signer
from ledger.tree.merkle import HASH_BYTES

_SIZE = re.compile("0|[1-9][0-9]{0,18}")
LARGEST_SIZE = 2**63 - 1
"""The limit of 64-bit database integers; no log reaches it."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The claim that the log `origin` has `size` entries under `root`. Only a signature makes it the log's claim."""

    origin: str
    size: int
    root: bytes

    def to_text(self) -> str:
        return f"{self.origin}\n{self.size}\n{encode_base64(self.root)}\n"

    @classmethod
    def from_text(cls, text: str) -> Checkpoint:
        """Read a note's text (tlog-checkpoint, "Note text"). Raises FormatError, also for extension lines."""
        lines = text.split("\n")
        if len(lines) != 4 or lines[3]:
            raise FormatError("checkpoint", "expected exactly three lines: origin, size, root")
        origin, size, root = lines[:3]
        check_key_name(origin, "checkpoint")
        if _SIZE.fullmatch(size) is None:
            raise FormatError("checkpoint", "expected a decimal size without leading zeros in line 2")
        if int(size) > LARGEST_SIZE:
            raise FormatError("checkpoint", f"expected a size of at most {LARGEST_SIZE} in line 2")
        root_bytes = decode_base64(root, "checkpoint")
        if len(root_bytes) != HASH_BYTES:
            raise FormatError("checkpoint", f"expected a root of {HASH_BYTES} bytes in line 3")
        return cls(origin, int(size), root_bytes)


def sign_checkpoint(checkpoint: Checkpoint, key: Signer) -> bytes:
    """The signed note; its key name is the origin ("Signatures" there). Equal checkpoints give equal bytes."""
    return sign_note(checkpoint.to_text(), checkpoint.origin, key).to_bytes()


def open_checkpoint(data: bytes, keys: Iterable[PublicKey], origin: str | None = None) -> Checkpoint:
    """The checkpoint in a signed note, if one of `keys` signed it and its log is `origin` (None: any log).

    Raises FormatError, SignatureError.
    """
    note = Note.from_bytes(data)
    checkpoint = claimed_checkpoint(note, origin)
    verify_note(note, checkpoint.origin, keys)
    return checkpoint


def claimed_checkpoint(note: Note, origin: str | None = None) -> Checkpoint:
    """The checkpoint in a note of the log `origin` (None: any log), without a check of its signatures. Raises
    FormatError.
    """
    checkpoint = Checkpoint.from_text(note.text)
    if origin is not None and checkpoint.origin != origin:
        raise FormatError("checkpoint", f"is of the log {checkpoint.origin!r}, expected {origin!r}")
    return checkpoint

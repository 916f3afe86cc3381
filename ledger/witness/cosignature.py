"""Cosignatures: a witness signs that, at some second, a checkpoint was the longest consistent one it had seen.

Follows c2sp.org/tlog-cosignature, type Ed25519 (`cosignature/v1`). A cosignature is a line of the checkpoint's note.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from ledger.errors import FormatError, SignatureError
from ledger.keys.note import (
    COSIGNATURE,
    Note,
    NoteSignature,
    VerifierKey,
    check_key_name,
    note_key_id,
)
from ledger.keys.signer import Signer

_LATEST = 2**63 - 1
_BYTES = 8 + 64


def cosign(text: str, name: str, key: Signer, seconds: int) -> NoteSignature:
    """The signature line over a checkpoint's note text, made at POSIX time `seconds`. Raises FormatError."""
    check_key_name(name)
    if not 0 <= seconds <= _LATEST:
        raise FormatError("timestamp", "expected a POSIX time from 0 to 2^63 - 1")
    signature = struct.pack(">Q", seconds) + key.sign(_message(text, seconds))
    return NoteSignature(name, note_key_id(name, key.public, COSIGNATURE), signature)


def cosigning_time(text: str, signature: NoteSignature, witness: VerifierKey) -> int:
    """When `witness` cosigned the checkpoint of this note text, in POSIX seconds. Raises SignatureError."""
    if len(signature.signature) != _BYTES:
        raise SignatureError(f"a cosignature by {witness.name} measures {_BYTES} bytes, not {len(signature.signature)}")
    (seconds,) = struct.unpack(">Q", signature.signature[:8])
    if seconds > _LATEST:
        raise SignatureError(f"the cosignature by {witness.name} names a time beyond 2^63 - 1")
    witness.key.verify(_message(text, seconds), signature.signature[8:])
    return int(seconds)


def cosigners(note: Note, witnesses: Iterable[VerifierKey]) -> Mapping[VerifierKey, int]:
    """The `witnesses` that have cosigned the note, and when (POSIX seconds, the latest of several).

    Lines of others are skipped; a line by a known witness that does not hold condemns the note (c2sp.org/signed-note,
    "Signatures"). Raises SignatureError.
    """
    known = {(witness.name, witness.key_id): witness for witness in witnesses}
    times: dict[VerifierKey, int] = {}
    for signature in note.signatures:
        witness = known.get((signature.name, signature.key_id))
        if witness is not None:
            time = cosigning_time(note.text, signature, witness)
            times[witness] = max(time, times.get(witness, time))
    return times


def _message(text: str, seconds: int) -> bytes:
    return f"cosignature/v1\ntime {seconds}\n{text}".encode()

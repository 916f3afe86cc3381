"""Cosignatures: a witness signs that, at a given second, a checkpoint was the longest consistent one that it had seen.

Follows c2sp.org/tlog-cosignature, type Ed25519 (`cosignature/v1`): a cosignature is a line of the checkpoint's note. A
log asks for one by c2sp.org/tlog-witness, "add-checkpoint": with the witness's known size, a consistency proof and the
new checkpoint.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ledger.encoding.text_forms import encode_base64
from ledger.errors import FormatError, SignatureError
from ledger.keys.note import COSIGNATURE, MAX_NOTE_BYTES, Note, NoteSignature, VerifierKey, check_key_name, note_key_id
from ledger.keys.signer import Signer
from ledger.tree.tlog_proof import read_proof

_LATEST = 2**63 - 1
_BYTES = 8 + 64

PATH = "add-checkpoint"
SEEN_PATH = "seen"
"""A path of kolm's, not in C2SP tlog-witness: the newest cosigned checkpoint, as the log signed it."""

SIZE_TYPE = "text/x.tlog.size"
"""Content type of the answer 409: the witness's known tree size, a decimal and a newline."""

MAX_REQUEST_BYTES = MAX_NOTE_BYTES + 64 * 64
_OLD = re.compile("old (0|[1-9][0-9]{0,18})")
_SIZE = re.compile(rb"(0|[1-9][0-9]{0,18})\n")


def cosign(text: str, name: str, key: Signer, seconds: int) -> NoteSignature:
    """The signature line over a checkpoint's note text, made at POSIX time `seconds`. Raises FormatError."""
    check_key_name(name)
    if not 0 <= seconds <= _LATEST:
        raise FormatError("timestamp", "expected a POSIX time from 0 to 2^63 - 1")
    signature = struct.pack(">Q", seconds) + key.sign(_message(text, seconds))
    return NoteSignature(name, note_key_id(name, key.public, COSIGNATURE), signature)


def cosigning_time(text: str, signature: NoteSignature, witness: VerifierKey) -> int:
    """The time of a cosignature by `witness` over this note text, in POSIX seconds. Raises SignatureError."""
    if len(signature.signature) != _BYTES:
        raise SignatureError(f"a cosignature by {witness.name} measures {_BYTES} bytes, not {len(signature.signature)}")
    (seconds,) = struct.unpack(">Q", signature.signature[:8])
    if seconds > _LATEST:
        raise SignatureError(f"the cosignature by {witness.name} names a time beyond 2^63 - 1")
    witness.key.verify(_message(text, seconds), signature.signature[8:])
    return int(seconds)


def cosigners(note: Note, witnesses: Iterable[VerifierKey]) -> Mapping[VerifierKey, int]:
    """The `witnesses` that have cosigned the note, with the time (POSIX seconds, the latest of several). Lines of
    others are ignored; an invalid line by a known witness invalidates the note (c2sp.org/signed-note, "Signatures").
    Raises SignatureError.
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


@dataclass(frozen=True, slots=True)
class AddCheckpoint:
    """The body of add-checkpoint. `checkpoint` is a signed note, not yet read."""

    old_size: int
    proof: tuple[bytes, ...]
    checkpoint: bytes

    def to_bytes(self) -> bytes:
        lines = [f"old {self.old_size}", *map(encode_base64, self.proof)]
        return "".join(f"{line}\n" for line in [*lines, ""]).encode() + self.checkpoint

    @classmethod
    def from_bytes(cls, data: bytes) -> AddCheckpoint:
        """Raises FormatError."""
        if len(data) > MAX_REQUEST_BYTES:
            raise FormatError("request", f"measures {len(data)} bytes, at most {MAX_REQUEST_BYTES} are allowed")
        head, blank, checkpoint = data.partition(b"\n\n")
        try:
            first, *lines = head.decode("ascii").split("\n")
        except UnicodeDecodeError:
            raise FormatError("request", "expected ASCII above the checkpoint") from None
        match = _OLD.fullmatch(first)
        if not blank or match is None:
            raise FormatError("request", "expected 'old <size>', hashes, an empty line and a checkpoint")
        return cls(int(match[1]), read_proof(lines, "request"), checkpoint)


def read_size(body: bytes) -> int:
    """The tree size of an answer 409. Raises FormatError."""
    match = _SIZE.fullmatch(body)
    if match is None:
        raise FormatError("size", "expected a decimal and a newline")
    return int(match[1])

"""C2SP signed notes with Ed25519 signatures: text, a blank line, then one line a signature.

Follows c2sp.org/signed-note v1.0.0; bytes agree with Go's golang.org/x/mod/sumdb/note.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ledger.base64_text import decode_base64, encode_base64
from ledger.errors import FormatError, SignatureError
from ledger.keys import PublicKey, SigningKey

MAX_NOTE_BYTES = 128 * 1024
"""Room for the 16 signatures that a verifier must accept, at 5 kB each for post-quantum ones, and to spare."""

_ED25519 = b"\x01"
_SIGNATURE_LINE = re.compile("— ([^ ]+) ([^ ]+)")
_FORBIDDEN = re.compile("[\x00-\x09\x0b-\x1f]")


@dataclass(frozen=True, slots=True)
class NoteSignature:
    """A signature line: who claims to have signed (name and 4-byte key id together name the key) and the signature."""

    name: str
    key_id: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Note:
    """A text ending in a newline, and its signatures. Holding one proves nothing: call `verify_note`."""

    text: str
    signatures: tuple[NoteSignature, ...]

    def to_bytes(self) -> bytes:
        lines = [
            f"— {signature.name} {encode_base64(signature.key_id + signature.signature)}\n"
            for signature in self.signatures
        ]
        return (self.text + "\n" + "".join(lines)).encode("utf-8")

    @classmethod
    def from_bytes(cls, data: bytes) -> Note:
        """Read a note, "Format" section; `Note.from_bytes(b).to_bytes() == b`. Raises FormatError for other bytes."""
        if len(data) > MAX_NOTE_BYTES:
            raise FormatError("note", f"measures {len(data)} bytes, at most {MAX_NOTE_BYTES} are allowed")
        try:
            whole = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise FormatError("note", f"is not UTF-8: {error}") from None
        if _FORBIDDEN.search(whole):
            raise FormatError("note", "holds a control character")
        text, blank, lines = whole.rpartition("\n\n")
        if not blank or not lines.endswith("\n"):
            raise FormatError("note", "expected a text, an empty line and signature lines, each ended by a newline")
        return cls(text + "\n", tuple(_signature(line) for line in lines[:-1].split("\n")))


def sign_note(text: str, name: str, key: SigningKey) -> Note:
    """A note over `text` (which ends in a newline) with one Ed25519 signature by `key` under the key name `name`."""
    check_key_name(name)
    if not text.endswith("\n") or _FORBIDDEN.search(text):
        raise FormatError("note", "expected a text that ends in a newline and holds no other control characters")
    return Note(text, (NoteSignature(name, note_key_id(name, key.public), key.sign(text.encode("utf-8"))),))


def verify_note(note: Note, name: str, keys: Iterable[PublicKey]) -> str:
    """The text, if one of `keys` signed it under `name`. Raises SignatureError.

    "Signatures" section: lines by unknown keys are ignored; a line by a known key that does not verify condemns the
    note.
    """
    known = {note_key_id(name, key): key for key in keys}
    signers = 0
    for signature in note.signatures:
        key = known.get(signature.key_id) if signature.name == name else None
        if key is not None:
            key.verify(note.text.encode("utf-8"), signature.signature)
            signers += 1
    if not signers:
        raise SignatureError(f"the note carries no signature by a trusted key of {name}")
    return note.text


def note_key_id(name: str, key: PublicKey) -> bytes:
    """SHA-256(key name ‖ 0x0A ‖ 0x01 ‖ public key)[:4], "Ed25519 signatures" section."""
    return hashlib.sha256(name.encode("utf-8") + b"\n" + _ED25519 + key.raw).digest()[:4]


def verifier_key(name: str, key: PublicKey) -> str:
    """The key as other people's note tools take it: `<name>+<key id, hex>+<base64 of 0x01 ‖ public key>`."""
    return f"{name}+{note_key_id(name, key).hex()}+{encode_base64(_ED25519 + key.raw)}"


def check_key_name(name: str, field: str = "name") -> None:
    """Raises FormatError unless `name` may name a key: not empty, no Unicode spaces, no plus, no control characters."""
    if not name or "+" in name or any(letter.isspace() for letter in name) or _FORBIDDEN.search(name):
        raise FormatError(field, "expected a key name without spaces and without +")


def _signature(line: str) -> NoteSignature:
    match = _SIGNATURE_LINE.fullmatch(line)
    if match is None:
        raise FormatError("note", "expected signature lines of the form '— <name> <base64>'")
    check_key_name(match[1], "note")
    data = decode_base64(match[2], "note")
    if len(data) <= 4:
        raise FormatError("note", "a signature is shorter than its key id")
    return NoteSignature(match[1], data[:4], data[4:])

"""C2SP signed notes with Ed25519 signatures: text, a blank line, then one line a signature.

Follows c2sp.org/signed-note v1.0.0; bytes agree with Go's golang.org/x/mod/sumdb/note.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ledger.encoding.text_forms import decode_base64, encode_base64
from ledger.errors import FormatError, SignatureError
from ledger.keys.ed25519 import PublicKey
from ledger.keys.signer import Signer

MAX_NOTE_BYTES = 128 * 1024
"""Enough for the 16 signatures that a verifier must accept, even if each is a post-quantum signature of 5 kB."""

ED25519 = 0x01
"""Signature type: Ed25519 over the note's text ("Signature types" section)."""

COSIGNATURE = 0x04
"""Signature type: timestamped Ed25519 cosignature of a checkpoint (c2sp.org/tlog-cosignature)."""

_SIGNATURE_LINE = re.compile("— ([^ ]+) ([^ ]+)")
_FORBIDDEN = re.compile("[\x00-\x09\x0b-\x1f]")


@dataclass(frozen=True, slots=True)
class NoteSignature:
    """A signature line: the claimed key (its name and 4-byte key id) and the signature."""

    name: str
    key_id: bytes
    signature: bytes

    def to_line(self) -> str:
        """The line with its newline."""
        return f"— {self.name} {encode_base64(self.key_id + self.signature)}\n"


@dataclass(frozen=True, slots=True)
class Note:
    """A text ending in a newline, and its signatures. Holding one proves nothing: call `verify_note`."""

    text: str
    signatures: tuple[NoteSignature, ...]

    def to_bytes(self) -> bytes:
        lines = "".join(signature.to_line() for signature in self.signatures)
        return f"{self.text}\n{lines}".encode()

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


def sign_note(text: str, name: str, key: Signer) -> Note:
    """A note over `text` (which ends in a newline) with one Ed25519 signature by `key` under the key name `name`."""
    check_key_name(name)
    if not text.endswith("\n") or _FORBIDDEN.search(text):
        raise FormatError("note", "expected a text that ends in a newline and holds no other control characters")
    return Note(text, (NoteSignature(name, note_key_id(name, key.public), key.sign(text.encode("utf-8"))),))


def verify_note(note: Note, name: str, keys: Iterable[PublicKey]) -> PublicKey:
    """The first of `keys` that signed the note under `name`. Raises SignatureError.

    "Signatures" section: lines by unknown keys are ignored; a line by a known key that does not verify invalidates the
    note.
    """
    known = {note_key_id(name, key): key for key in keys}
    signers = set[PublicKey]()
    for signature in note.signatures:
        key = known.get(signature.key_id) if signature.name == name else None
        if key is not None:
            key.verify(note.text.encode("utf-8"), signature.signature)
            signers.add(key)
    if not signers:
        raise SignatureError(f"the note carries no signature by a trusted key of {name}")
    return next(key for key in known.values() if key in signers)


def note_key_id(name: str, key: PublicKey, kind: int = ED25519) -> bytes:
    """SHA-256(key name ‖ 0x0A ‖ signature type ‖ public key)[:4], "Signatures" section."""
    return hashlib.sha256(name.encode("utf-8") + b"\n" + bytes([kind]) + key.raw).digest()[:4]


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """A named key for one type of signature, in the form of note tools ("vkey", "Verifier keys" section)."""

    name: str
    key: PublicKey
    kind: int = ED25519

    @property
    def key_id(self) -> bytes:
        return note_key_id(self.name, self.key, self.kind)

    def to_text(self) -> str:
        """`<name>+<key id, hex>+<base64 of type ‖ public key>`."""
        return f"{self.name}+{self.key_id.hex()}+{encode_base64(bytes([self.kind]) + self.key.raw)}"

    @classmethod
    def from_text(cls, text: str, field: str = "vkey") -> VerifierKey:
        """Read a vkey with an Ed25519 key of either type. Raises FormatError, also if the key id belongs to another
        key.
        """
        name, _, rest = text.partition("+")
        key_id, plus, encoded = rest.partition("+")
        if not plus:
            raise FormatError(field, "expected <name>+<key id>+<base64>")
        check_key_name(name, field)
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise FormatError(field, "is not UTF-8")
        material = decode_base64(encoded, field)
        if len(material) != 33 or material[0] not in (ED25519, COSIGNATURE):
            raise FormatError(field, "expected an Ed25519 key of signature type 1 (log) or 4 (witness)")
        key = cls(name, PublicKey(material[1:]), material[0])
        if key.key_id.hex() != key_id:
            raise FormatError(field, f"names key id {key_id[:16]!r}, but the key has {key.key_id.hex()}")
        return key


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

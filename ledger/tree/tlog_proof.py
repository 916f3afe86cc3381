"""`tlog-proof` files: one entry's place in a log, its inclusion proof and a signed checkpoint, in a text of lines.

Follows c2sp.org/tlog-proof v1. kolm's files have the entry's bytes as extra data, so that one file is enough; they are
trusted no more than the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ledger.encoding.text_forms import decode_base64, encode_base64
from ledger.errors import FormatError
from ledger.keys.note import MAX_NOTE_BYTES, Note
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.merkle import HASH_BYTES, leaf_hash, verify_inclusion

MAX_PROOF_BYTES = MAX_NOTE_BYTES + 128 * 1024
"""Room for a note, 63 hashes and an entry in base64."""

_FIRST_LINE = "c2sp.org/tlog-proof@v1"
_INDEX = re.compile("index (0|[1-9][0-9]{0,18})")
_MOST_HASHES = 63


@dataclass(frozen=True, slots=True)
class TlogProof:
    """A proof file's parts. Holding one proves nothing: open its checkpoint under a policy, then `verify`."""

    index: int
    hashes: tuple[bytes, ...]
    checkpoint: bytes
    extra: bytes | None = None

    def to_bytes(self) -> bytes:
        lines = [_FIRST_LINE]
        if self.extra is not None:
            lines.append(f"extra {encode_base64(self.extra)}")
        lines += [f"index {self.index}", *map(encode_base64, self.hashes)]
        return ("\n".join(lines) + "\n\n").encode() + self.checkpoint

    @classmethod
    def from_bytes(cls, data: bytes) -> TlogProof:
        """Read a proof file, "Format" section. Raises FormatError."""
        if len(data) > MAX_PROOF_BYTES:
            raise FormatError("tlog-proof", f"measures {len(data)} bytes, at most {MAX_PROOF_BYTES} are allowed")
        head, blank, checkpoint = data.partition(b"\n\n")
        if not blank:
            raise FormatError("tlog-proof", "expected an empty line before the checkpoint")
        Checkpoint.from_text(Note.from_bytes(checkpoint).text)
        try:
            lines = head.decode("ascii").split("\n")
        except UnicodeDecodeError:
            raise FormatError("tlog-proof", "expected ASCII above the checkpoint") from None
        if lines.pop(0) != _FIRST_LINE:
            raise FormatError("tlog-proof", f"expected {_FIRST_LINE!r} as the first line")
        extra = _extra(lines)
        return cls(_index(lines), read_proof(lines, "tlog-proof"), checkpoint, extra)

    def verify(self, entry: bytes, checkpoint: Checkpoint) -> None:
        """Raises ProofError unless `checkpoint`, opened from this file, has `entry` at `index`."""
        verify_inclusion(leaf_hash(entry), self.index, checkpoint.size, self.hashes, checkpoint.root)


def _extra(lines: list[str]) -> bytes | None:
    if not (lines and lines[0].startswith("extra ")):
        return None
    return decode_base64(lines.pop(0).removeprefix("extra "), "tlog-proof")


def _index(lines: list[str]) -> int:
    match = _INDEX.fullmatch(lines.pop(0)) if lines else None
    if match is None:
        raise FormatError("tlog-proof", "expected a line 'index <decimal without leading zeros>'")
    return int(match[1])


def read_proof(lines: list[str], field: str) -> tuple[bytes, ...]:
    """The hashes of a proof, one in base64 on each line. Raises FormatError naming `field`."""
    hashes = tuple(decode_base64(line, field) for line in lines)
    if len(hashes) > _MOST_HASHES or any(len(node) != HASH_BYTES for node in hashes):
        raise FormatError(field, f"expected at most {_MOST_HASHES} hashes of {HASH_BYTES} bytes, one a line")
    return hashes

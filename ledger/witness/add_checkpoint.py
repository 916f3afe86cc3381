"""The request of a log to a witness: the size that the witness knows, a consistency proof, and the new checkpoint.

Follows c2sp.org/tlog-witness, "add-checkpoint".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ledger.encoding.text_forms import decode_base64, encode_base64
from ledger.errors import FormatError
from ledger.keys.note import MAX_NOTE_BYTES
from ledger.tree.merkle import HASH_BYTES

PATH = "add-checkpoint"
SIZE_TYPE = "text/x.tlog.size"
"""Content type of the answer 409: the tree size that the witness knows, a decimal and a newline."""

MAX_REQUEST_BYTES = MAX_NOTE_BYTES + 64 * 64
_MOST_HASHES = 63
_OLD = re.compile("old (0|[1-9][0-9]{0,18})")
_SIZE = re.compile(rb"(0|[1-9][0-9]{0,18})\n")


@dataclass(frozen=True, slots=True)
class AddCheckpoint:
    """The body of add-checkpoint. `checkpoint` is a signed note, not looked into yet."""

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
        proof = tuple(decode_base64(line, "request") for line in lines)
        if len(proof) > _MOST_HASHES or any(len(node) != HASH_BYTES for node in proof):
            raise FormatError("request", f"expected at most {_MOST_HASHES} hashes of {HASH_BYTES} bytes, one a line")
        return cls(int(match[1]), proof, checkpoint)


def read_size(body: bytes) -> int:
    """The tree size of an answer 409. Raises FormatError."""
    match = _SIZE.fullmatch(body)
    if match is None:
        raise FormatError("size", "expected a decimal and a newline")
    return int(match[1])

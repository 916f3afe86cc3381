"""The draw: an auditor's signature over a tree, which decides which receipts in it are replayed.

    receipt i is sampled  ⇔  SHA-256(seed ‖ i as u64 big-endian) < p · 2^256
    seed = SHA-256 of the draw's DSSE envelope in canonical form (one signature, by the auditor)

Nobody without the auditor's key can compute the seed before the auditor has signed, and the signed document names the
tree that already holds i. p is the IEEE double of the policy, so p · 2^256 is exact.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar

from ledger.encoding.digest import parse_digest
from ledger.encoding.fields import Fields
from ledger.keys.envelope import Envelope


@dataclass(frozen=True, slots=True)
class Draw:
    """A `kolm.draw.v1` document. Signed by one key of role `auditor`.

    Decides about the receipts below `tree_size` that no earlier draw has decided about. `root` is the root over the
    first `tree_size` entries (`sha256:<hex>`) as the auditor computed it: over another log the draw is void.
    """

    TYPE: ClassVar[str] = "kolm.draw.v1"

    tree_size: int
    root: str
    issued_at: str

    def to_document(self) -> dict[str, Any]:
        return {"type": self.TYPE, "tree_size": self.tree_size, "root": self.root, "issued_at": self.issued_at}

    @property
    def root_hash(self) -> bytes:
        """The root's 32 bytes."""
        return parse_digest(self.root)

    @classmethod
    def from_document(cls, document: object) -> Draw:
        """The draw that a parsed JSON value holds. Raises FormatError naming the first field that is wrong."""
        fields = Fields(document)
        fields.constant("type", cls.TYPE)
        draw = cls(
            tree_size=fields.integer("tree_size", 1),
            root=fields.digest("root"),
            issued_at=fields.time("issued_at"),
        )
        fields.close()
        return draw


def draw_seed(envelope: Envelope) -> bytes:
    """The 32-byte seed of a draw, from the envelope as it was signed."""
    return hashlib.sha256(envelope.to_bytes()).digest()


def is_sampled(seed: bytes, index: int, rate: float) -> bool:
    """Whether entry `index` is sampled at `rate` (0 to 1)."""
    drawn = int.from_bytes(hashlib.sha256(seed + index.to_bytes(8, "big")).digest(), "big")
    numerator, denominator = rate.as_integer_ratio()  # exact: a double is a fraction
    return drawn * denominator < numerator << 256

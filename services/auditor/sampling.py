"""Which entries are replayed: a rule that nobody can bias beforehand and that everybody can check afterwards.

    entry i is sampled  ⇔  SHA-256(root of the first tree with an entry after i ‖ i as u64 big-endian) < p · 2^256

That tree has i + 2 leaves. Its root depends on an entry that did not exist when i was served, every later checkpoint
commits to it, and it follows from the log alone: an auditor that starts again decides as it did before. A receipt that
is still the last entry is undecided, except at rates 0 and 1, which need no draw.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction

from ledger.merkle import HASH_BYTES

_DRAWS = 2 ** (8 * HASH_BYTES)


def deciding_tree_size(index: int) -> int:
    """The number of leaves of the tree whose root decides about entry `index`."""
    return index + 2


def needs_draw(rate: float) -> bool:
    """Whether a rate leaves anything to chance. Raises ValueError for what is no probability."""
    if not 0.0 <= rate <= 1.0:
        raise ValueError(f"expected a rate from 0 to 1, got {rate}")
    return 0.0 < rate < 1.0


def is_sampled(root: bytes, index: int, rate: float) -> bool:
    """Whether entry `index` is sampled at `rate`, given the root of the tree of `deciding_tree_size(index)` leaves."""
    if not needs_draw(rate):
        return rate == 1.0
    draw = int.from_bytes(hashlib.sha256(root + index.to_bytes(8, "big")).digest(), "big")
    return bool(draw < Fraction(rate) * _DRAWS)

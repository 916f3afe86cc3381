"""What an append is answered with: everything needed to prove, offline, that the log holds the envelope."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Appended:
    """`entry` is the leaf's bytes at `index`, `entry_hash` what the next entry names as `previous`.

    `inclusion_proof` leads from the leaf to the root of `checkpoint` (a signed note over `tree_size` entries).
    `halt_epoch` counts the halts in those entries. An envelope that was in the log already gets its old index.
    """

    index: int
    entry: bytes
    entry_hash: str
    checkpoint: bytes
    tree_size: int
    inclusion_proof: tuple[bytes, ...]
    halt_epoch: int

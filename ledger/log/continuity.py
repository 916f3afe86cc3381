"""Continuity of a log: checks that refuse an old copy of its database, and the contract of the guard.

A restored backup is complete and well signed, so the database alone does not show its age. The guard keeps the newest
tree head apart from it, and shows the age unless it was restored as well: it belongs on another disk or host.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ledger.errors import ChainError, GuardMissing, NotFound, RolledBack
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.store import EntryStore
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.merkle import HashReader, tree_root
from ledger.tree.tile import TileHashes
from ledger.witness.cosignature_store import newest_signed


class Guard(Protocol):
    """One tree head for each log (origin), changed by compare-and-swap before the checkpoint over it is signed.

    Durability: a head survives a crash of the machine once `compare_and_swap` has returned; after a StoreError it is
    unknown whether it was written. Concurrency: of two callers that swap the same old head, exactly one succeeds.
    """

    def read(self, origin: str) -> Checkpoint | None:
        """The newest head, None for a log that the guard has not seen. Raises StoreError."""
        ...

    def compare_and_swap(self, old: Checkpoint | None, new: Checkpoint) -> None:
        """Replace `old` by `new`. Raises StoreLocked if the guard holds another head, StoreError."""
        ...

    def check_held(self) -> None:
        """`store.EntryStore.check_held`."""
        ...

    def close(self) -> None:
        """Release files and locks. Closing twice changes nothing."""
        ...


def check_not_rolled_back(guarded: Checkpoint | None, size: int, signed: Checkpoint | None, hashes: HashReader) -> None:
    """Compare a database of `size` entries, whose newest signed tree head is `signed`, with the guard. Raises
    RolledBack if the database is older, ChainError if it holds another log.
    """
    if guarded is not None:
        check_extends(guarded, size, hashes, "the guard", signed)


def check_extends(
    seen: Checkpoint, size: int, hashes: HashReader, keeper: str, signed: Checkpoint | None = None
) -> None:
    """Check that the log of a database extends the tree head `seen`, which `keeper` holds. Raises RolledBack,
    ChainError.
    """
    if seen.size > size:
        raise RolledBack(
            f"the database is older than the log: it holds {size} entries ({_name(signed)}), but {keeper} has seen "
            f"{_name(seen)}. An old backup was restored: bring back the database that holds entry "
            f"{seen.size - 1}. If it is lost for good, this log has ended: begin a new one, under another origin",
            size,
            seen.size,
        )
    try:
        root = tree_root(seen.size, hashes)
    except NotFound as error:
        raise ChainError(seen.size - 1, str(error)) from error
    if root != seen.root:
        raise ChainError(seen.size - 1, f"the entries up to here are not those of {_name(seen)} in {keeper}")


def check_continuity(
    store: EntryStore,
    guard: Guard,
    trusted: TrustedKeys,
    origin: str,
    witnessed: Path,
    *,
    new_guard: bool = False,
) -> None:
    """Refuse a log whose guard is gone, or that contradicts the newest cosigned checkpoint in `witnessed`.

    `trusted` holds the log's replaced keys as well.
    `new_guard`: the operator knows that the guard is a new one.

    Raises GuardMissing, RolledBack, ChainError, StoreError.
    """
    size = store.size()
    seen = newest_signed(witnessed, trusted.keys("log"), origin)
    if seen is not None:
        check_extends(seen, size, TileHashes(store), f"a checkpoint in {witnessed}")
    if size and not new_guard and guard.read(origin) is None:
        raise GuardMissing(size)


def _name(head: Checkpoint | None) -> str:
    return "no signed head" if head is None else f"the head over {head.size} entries with root {head.root.hex()}"

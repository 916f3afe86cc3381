"""Is this database the log as others last saw it? What is looked at before a log is opened for writing, beside the
guard's own word: that there is a guard at all, and the newest checkpoint that witnesses have cosigned.
"""

from __future__ import annotations

from pathlib import Path

from ledger.errors import GuardMissing
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.guard import Guard, check_extends
from ledger.log.store import EntryStore
from ledger.tree.tile import TileHashes
from ledger.witness.cosigned_checkpoints import newest_signed


def check_continuity(
    store: EntryStore, guard: Guard, trusted: TrustedKeys, origin: str, witnessed: Path, *, new_guard: bool = False
) -> None:
    """Refuse a log whose guard is gone, and one that is not what a cosigned checkpoint in `witnessed` says.

    `trusted` holds the log's replaced keys as well. `new_guard`: the operator knows that the guard is a new one.

    Raises GuardMissing, RolledBack, ChainError, StoreError.
    """
    size = store.size()
    seen = newest_signed(witnessed, trusted.keys("log"), origin)
    if seen is not None:
        check_extends(seen, size, TileHashes(store), f"a checkpoint in {witnessed}")
    if size and not new_guard and guard.read(origin) is None:
        raise GuardMissing(size)

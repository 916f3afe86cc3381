"""A Guard in memory, under the same contract suite as the one on SQL.

guard = MemoryGuard()
sequencer = Sequencer(store, KEYS["log"], TRUSTED, ORIGIN, guard=guard)
"""

from __future__ import annotations

import threading

from ledger.errors import StoreLocked
from ledger.tree.checkpoint import Checkpoint


class MemoryGuard:
    """Keeps the contract of `ledger.log.guard.Guard`, durability excepted."""

    def __init__(self) -> None:
        self._heads: dict[str, Checkpoint] = {}
        self._lock = threading.Lock()

    def read(self, origin: str) -> Checkpoint | None:
        return self._heads.get(origin)

    def compare_and_swap(self, old: Checkpoint | None, new: Checkpoint) -> None:
        with self._lock:
            if self._heads.get(new.origin) != old:
                raise StoreLocked("the guard holds another head than expected")
            self._heads[new.origin] = new

    def close(self) -> None:
        pass

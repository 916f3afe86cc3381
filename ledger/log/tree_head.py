"""The published tree head: the latest signed checkpoint."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ledger.documents.halt import HaltState
from ledger.tree.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class TreeHead:
    """A state of the log: a checkpoint, the signed note over it, and the halt state after exactly its entries."""

    checkpoint: Checkpoint
    note: bytes
    halts: HaltState

    @property
    def size(self) -> int:
        return self.checkpoint.size


class TreeHeadBoard:
    """The latest tree head, posted by the sequencer's thread and read by any thread. Sizes only grow."""

    def __init__(self, head: TreeHead) -> None:
        self._head = head
        self._posted = time.monotonic()

    def post(self, head: TreeHead) -> None:
        if head is not self._head:
            self._posted = time.monotonic()
        self._head = head

    @property
    def age(self) -> float:
        """Seconds since the latest head was posted: since it was signed, or found at the start."""
        return time.monotonic() - self._posted

    def latest(self) -> TreeHead:
        return self._head

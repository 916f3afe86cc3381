"""The published tree head: the latest signed checkpoint, and a place to wait for the next one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ledger.documents.halt import HaltState
from ledger.tree.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class TreeHead:
    """The newest state of the log: a checkpoint, the signed note over it, and the halt state of exactly its entries."""

    checkpoint: Checkpoint
    note: bytes
    halts: HaltState

    @property
    def size(self) -> int:
        return self.checkpoint.size


class TreeHeadBoard:
    """The sequencer posts tree heads here, and readers wait for them. Sizes only grow. Safe between threads."""

    def __init__(self, head: TreeHead, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` counts seconds."""
        self._head = head
        self._clock = clock
        self._posted = clock()
        self._changed = threading.Condition()

    def post(self, head: TreeHead) -> None:
        with self._changed:
            if head is not self._head:
                self._posted = self._clock()
            self._head = head
            self._changed.notify_all()

    @property
    def age(self) -> float:
        """Seconds since the latest head was posted: since it was signed, or found at the start."""
        return self._clock() - self._posted

    def latest(self) -> TreeHead:
        with self._changed:
            return self._head

    def wait_beyond(self, size: int, timeout: float | None = None) -> TreeHead:
        """The first head with more than `size` entries, or after `timeout` seconds the latest, whatever its size."""
        with self._changed:
            self._changed.wait_for(lambda: self._head.size > size, timeout)
            return self._head

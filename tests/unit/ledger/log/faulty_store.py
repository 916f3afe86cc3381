"""A store and a guard that fail at any step of a write, a sequencer over them, and the check of all that it wrote."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, cast

from ledger.audit.log_verification import verify_log
from ledger.errors import StoreError
from ledger.log.continuity import Guard
from ledger.log.sequencer import Sequencer
from ledger.log.store import Batch, EntryStore
from ledger.log.writer import Appended
from ledger.tree.checkpoint import Checkpoint
from tests.unit.ledger.builders import KEYS, ORIGIN, TRUSTED, signed_receipt
from tests.unit.ledger.log.memory_store import MemoryGuard

BEFORE_COMMIT = "before commit"
AFTER_COMMIT = "after commit"
READ_BACK = "read back"
BEFORE_CHECKPOINT = "before checkpoint"
AFTER_CHECKPOINT = "after checkpoint"
BEFORE_GUARD = "before guard"
AFTER_GUARD = "after guard"
PROBE = "probe"
FAULTS = (BEFORE_COMMIT, AFTER_COMMIT, READ_BACK, BEFORE_GUARD, AFTER_GUARD, BEFORE_CHECKPOINT, AFTER_CHECKPOINT)
"""Every step of a write, failed before it has happened or after it has persisted."""


class FaultyStore:
    """Calls `strike` at each step of a write; the database raises the errors of `strike`."""

    def __init__(self, inner: EntryStore, strike: Callable[[str], None]) -> None:
        self._inner = inner
        self._strike = strike

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, batch: Batch) -> None:
        self._strike(BEFORE_COMMIT)
        self._inner.commit(batch)
        self._strike(AFTER_COMMIT)

    def probe(self) -> None:
        self._strike(PROBE)
        self._inner.probe()

    def entries(self, start: int, limit: int) -> Sequence[bytes]:
        self._strike(READ_BACK)
        return self._inner.entries(start, limit)

    def record_checkpoint(self, size: int, note: bytes) -> None:
        self._strike(BEFORE_CHECKPOINT)
        self._inner.record_checkpoint(size, note)
        self._strike(AFTER_CHECKPOINT)


class FaultyGuard:
    """The same for a guard."""

    def __init__(self, inner: Guard, strike: Callable[[str], None]) -> None:
        self._inner = inner
        self._strike = strike

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def check_held(self) -> None:
        self._inner.check_held()

    def compare_and_swap(self, old: Checkpoint | None, new: Checkpoint) -> None:
        self._strike(BEFORE_GUARD)
        self._inner.compare_and_swap(old, new)
        self._strike(AFTER_GUARD)


class Once:
    """A strike that fails the first time that an armed step is reached."""

    def __init__(self) -> None:
        self.armed: str | None = None

    def __call__(self, step: str) -> None:
        if step == self.armed:
            self.armed = None
            raise StoreError(f"disk I/O error {step}")


class Gate:
    """A strike that lets commits through only while it is open, and counts them."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Semaphore(0)
        self.commits = 0

    def __call__(self, step: str) -> None:
        if step == BEFORE_COMMIT:
            self.commits += 1
            self.reached.release()
            self.open.wait()


def open_sequencer(store: object, **options: Any) -> Sequencer:
    return Sequencer(cast(EntryStore, store), KEYS["log"], TRUSTED, ORIGIN, **({"guard": MemoryGuard()} | options))


def check_whole_log(store: EntryStore) -> None:
    report = verify_log(store.entries(0, 10_000), store.latest_checkpoint(), TRUSTED, ORIGIN)
    assert report.ok, report.problem


def hold(sequencer: Sequencer, gate: Gate) -> Future[Appended]:
    """Append one receipt and return once the writer waits with it at the closed gate."""
    while gate.reached.acquire(blocking=False):  # commits of before
        pass
    gate.open.clear()
    waiting = sequencer.append(signed_receipt(900))
    gate.reached.acquire()
    return waiting

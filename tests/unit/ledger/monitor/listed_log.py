"""A log in lists, with its files as tlog-tiles has them; looks of a monitor at such logs."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from ledger.bundle.tiles import export_tiles
from ledger.documents.signed_document import Document
from ledger.errors import NotFound
from ledger.keys.ed25519 import SigningKey
from ledger.keys.envelope import Envelope
from ledger.monitor.judgement import Limits, Promised
from ledger.monitor.memory import MonitorMemory
from ledger.monitor.monitor import Monitor
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.entry import Entry
from ledger.tree.merkle import Frontier, leaf_hash
from tests.unit.ledger.builders import KEYS, ORIGIN, START, TRUSTED, policy, receipt, signed


class ListedLog:
    """TileFiles over appended entries. `overlay` has files with other bytes."""

    def __init__(self, entries: Iterable[bytes] = ()) -> None:
        self.entries = list(entries)
        self.key = KEYS["log"]
        self.overlay: dict[str, bytes] = {}
        self.read_paths: list[str] = []
        self._files: dict[str, bytes] = {}
        self._written = -1

    def append(self, *documents: Document | bytes) -> int:
        for document in documents:
            envelope = document if isinstance(document, bytes) else signed(document)
            self.entries.append(Entry(len(self.entries), Envelope.from_bytes(envelope)).to_bytes())
        return len(self.entries) - 1

    def checkpoint(self, size: int | None = None, key: SigningKey | None = None) -> bytes:
        frontier = Frontier()
        for entry in self.entries[:size]:
            frontier = frontier.append(leaf_hash(entry))
        return sign_checkpoint(Checkpoint(ORIGIN, frontier.size, frontier.root()), key or self.key)

    def read(self, path: str, most: int) -> bytes:
        self.read_paths.append(path)
        if path in self.overlay:
            return self.overlay[path]
        if self._written != len(self.entries):
            self._files = {file.path: file.data for file in export_tiles(self.entries, self.checkpoint())}
            self._written = len(self.entries)
        if path == "checkpoint":
            return self.checkpoint()
        if path not in self._files:
            raise NotFound(path)
        return self._files[path]


NOW = START + timedelta(seconds=500)


def told(
    log: ListedLog, memory: MonitorMemory, now: datetime = NOW, *promised: Promised, **limits: object
) -> list[str]:
    """The kinds of the findings of a monitor that has just started with a memory."""
    monitor = Monitor(memory, TRUSTED, Limits(**limits))  # type: ignore[arg-type]
    monitor.poll(log, now)
    return [finding.kind for finding in monitor.findings(promised, now)]


def owed(count: int = 3, rate: float = 1.0) -> ListedLog:
    """A log with receipts at the entries 1, 2, …"""
    log = ListedLog()
    log.append(policy(rate, 600), *(receipt(number) for number in range(count)))
    return log

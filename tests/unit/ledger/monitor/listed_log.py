"""A log in lists, with its files as tlog-tiles has them; a memory without a disk; looks of a monitor at such logs."""

import copy
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any

from ledger.audit.halt_breach import scopes_in
from ledger.bundle.tiles import export_tiles
from ledger.documents.audit import ACCUSATIONS, DEVIATION, EXACT, NO_ANSWERS, Verdict
from ledger.documents.erasure import Retention
from ledger.documents.halt import Scope
from ledger.documents.promise import kept_digest
from ledger.documents.receipt import Receipt
from ledger.documents.reference_rules import JudgedOutput
from ledger.documents.signed_document import Document
from ledger.errors import NotFound
from ledger.keys.ed25519 import SigningKey
from ledger.keys.envelope import Envelope
from ledger.monitor.finding import Evidence
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


@dataclass
class ListedMemory:
    """MonitorMemory that forgets at the end of the process."""

    receipt_ids: dict[int, str] = field(default_factory=dict)
    outputs: dict[int, JudgedOutput] = field(default_factory=dict)
    served: dict[int, tuple[Scope, ...]] = field(default_factory=dict)
    judged: dict[tuple[int, str, str], int] = field(default_factory=dict)
    outcomes: dict[int, str] = field(default_factory=dict)
    policies: list[tuple[int, Retention]] = field(default_factory=list)
    summary: dict[str, Any] | None = None
    kept: dict[bytes, int] = field(default_factory=dict)
    failed: dict[int, bool] = field(default_factory=dict)
    evidence: list[tuple[str, Evidence]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)

    def load(self) -> dict[str, Any] | None:
        return copy.deepcopy(self.summary)

    def save(self, summary: dict[str, Any]) -> None:
        self.summary = json.loads(json.dumps(summary))

    @contextmanager
    def batch(self) -> Iterator[None]:
        before = {each.name: copy.deepcopy(getattr(self, each.name)) for each in fields(self)}
        try:
            yield
        except BaseException:
            for name, value in before.items():
                setattr(self, name, value)
            raise

    def receipt_id_at(self, index: int) -> str | None:
        return self.receipt_ids.get(index)

    def output_at(self, index: int) -> JudgedOutput | None:
        return self.outputs.get(index)

    def served_in(self, index: int) -> tuple[Scope, ...]:
        return self.served.get(index, ())

    def opposite(self, index: int, verdict: Verdict, auditor: str) -> int | None:
        """By outcome alone, of kolm's own engine."""
        self.judged.setdefault((verdict.receipt_index, auditor, verdict.outcome), index)
        opposite = {EXACT: DEVIATION, DEVIATION: EXACT}.get(verdict.outcome, "")
        return self.judged.get((verdict.receipt_index, auditor, opposite))

    def accuses(self, index: int) -> bool:
        return self.outcomes.get(index) in ACCUSATIONS

    def retentions(self) -> list[tuple[int, Retention]]:
        return self.policies

    def knows(self, receipt_id: str) -> bool:
        return receipt_id in self.receipt_ids.values()

    def remember(self, index: int, document: Document) -> None:
        if isinstance(document, Receipt):
            self.receipt_ids[index] = document.receipt_id
            self.outputs[index] = JudgedOutput.of(document)
            self.served[index] = scopes_in(document)
            self.kept[kept_digest(document)] = index
        if isinstance(document, Retention):
            self.policies.append((index, document))
        if isinstance(document, Verdict):
            self.outcomes[index] = document.outcome
            self.failed[document.receipt_index] = document.outcome in NO_ANSWERS

    def holds(self, digests: Iterable[bytes]) -> int:
        return sum(digest in self.kept for digest in digests)

    def unreplayable(self, since: int) -> tuple[int, int]:
        found = [index for index, failed in self.failed.items() if failed and index >= since]
        return len(found), min(found, default=0)

    def accuse(self, kind: str, evidence: Evidence) -> None:
        if (kind, evidence) not in self.evidence:
            self.evidence.append((kind, evidence))

    def accusations(self, kind: str) -> list[Evidence]:
        return [evidence for each, evidence in self.evidence if each == kind]

    def reported(self) -> set[str]:
        return set(self.keys)

    def keep_reported(self, keys: Iterable[str]) -> None:
        self.keys = set(keys)


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

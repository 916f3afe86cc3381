"""Follows a log: every new checkpoint, every entry under it, owed replays and promises.

    monitor = Monitor(memory, trusted, limits)
    monitor.poll(files, now)             # repeat it; reads only new entries
    for finding in monitor.findings(promises, now): ...

Entries are read in batches, each proven to be in the newest signed tree before it is kept. So a crash costs a batch, no
unproven entry is kept, and memory does not grow with the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import islice

from ledger.audit.log_walk import CheckFailed
from ledger.bundle.evidence import KEY_ENTRY
from ledger.bundle.file_checks import key_history
from ledger.bundle.tiles import TiledTree, TileFiles, read_checkpoint
from ledger.documents.key_history import KeyHistory
from ledger.errors import FormatError, NotFound, ProofError, SignatureError
from ledger.keys.note import Note, verify_note
from ledger.keys.trusted_keys import TrustedKeys
from ledger.monitor import finding as kinds
from ledger.monitor.finding import Evidence, Finding
from ledger.monitor.judgement import Limits, Promised, judge
from ledger.monitor.memory import MonitorMemory
from ledger.monitor.summary import SeenHead, Summary
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.entry import Entry
from ledger.tree.merkle import Frontier, consistency_proof, leaf_hash, tree_root, verify_consistency
from ledger.tree.tile import TileHashes
from ledger.witness.freshness import quorum_time

_BATCH = 4096
"""Entries between two writes of the summary, which a crash may lose."""


class _Told(Exception):
    """Raised to end a poll with a finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


class Monitor:
    """The monitor of one log. Not thread-safe."""

    def __init__(self, memory: MonitorMemory, trusted: TrustedKeys, limits: Limits) -> None:
        """Raises StoreError, also for a memory made with other keys."""
        self._memory = memory
        self._trusted = trusted
        self._limits = limits
        self._of_this_look: Finding | None = None
        self._complete = False
        self._summary = self._loaded()

    @property
    def size(self) -> int:
        """The number of checked entries."""
        return self._summary.size

    def poll(self, files: TileFiles, now: datetime) -> None:
        """Read new entries. Their faults become findings. Raises only if the log cannot be read: NotFound without a
        checkpoint, the errors of `files`, StoreError.
        """
        self._complete, note = False, read_checkpoint(files)
        self._of_this_look = None
        try:
            head = self._accepted(note, files, now)
            self._read(files, head, now)
            self._check_key(note, head)
            self._complete = True
        except _Told as told:
            self._of_this_look = told.finding

    def findings(self, promised: tuple[Promised, ...], now: datetime) -> list[Finding]:
        """All present findings, also after a failed poll; lasting findings each time."""
        current = [] if self._of_this_look is None else [self._of_this_look]
        known = promised if self._complete else ()
        standing = judge(self._summary, self._memory, self._limits, known, now)
        return current + [each for each in standing if each.key not in {one.key for one in current}]

    def _loaded(self) -> Summary:
        saved = self._memory.load()
        if saved is None:
            return Summary.empty(self._trusted, self._memory)
        return Summary.from_document(saved, self._trusted, self._memory)

    def _accepted(self, note: bytes, files: TileFiles, now: datetime) -> Checkpoint:
        """The checkpoint, if the log signed it and it extends the known tree; it is then kept."""
        head = self._opened(note, files)
        seen = self._summary.head
        if seen is not None:
            self._check_extends(seen, head, note, files)
        grown = seen is None or head.size > seen.checkpoint.size
        vouched = [time for time in (self._quorum_time(note), None if seen is None else seen.vouched_at) if time]
        newest = SeenHead(note, now.timestamp() if seen is None or grown else seen.seen_at, max(vouched, default=None))
        if newest != seen:
            self._summary.head = newest
            with self._memory.batch():
                self._memory.save(self._summary.to_document())
        return head

    def _opened(self, data: bytes, files: TileFiles) -> Checkpoint:
        try:
            note = Note.from_bytes(data)
            head = Checkpoint.from_text(note.text)
            self._check_origin(head)
            keys = self._summary.walk.keys
            try:
                _check_signed(note, head, keys)
            except SignatureError:  # a key may have been replaced in later entries
                ahead = (data for data in self._ahead(files, head) if KEY_ENTRY in data)
                _check_signed(note, head, key_history(keys, ahead))
        except (FormatError, SignatureError, ProofError, NotFound) as error:
            message = f"the log shows a checkpoint that it has not signed: {error}"
            raise _Told(Finding(kinds.CHECKPOINT, kinds.CHECKPOINT, message)) from error
        return head

    def _check_origin(self, head: Checkpoint) -> None:
        seen = self._summary.head
        expected = self._limits.origin or (None if seen is None else seen.checkpoint.origin)
        if expected not in (None, head.origin):
            raise FormatError("checkpoint", f"is of the log {head.origin!r}, expected {expected!r}")

    def _check_extends(self, seen: SeenHead, head: Checkpoint, note: bytes, files: TileFiles) -> None:
        old = seen.checkpoint
        if head.size < old.size:
            evidence = Evidence(note, seen.note)
            message = f"the log shows {head.size} entries and had signed {old.size}: it was rolled back"
            raise self._accused(kinds.ROLLBACK, evidence, message)
        if head.size == old.size:
            if head.root != old.root:
                raise self._forked(Evidence(seen.note, note), old, head)
            return
        hashes = TileHashes(TiledTree(files, head.size))
        try:
            shown = tree_root(old.size, hashes)
            proof = consistency_proof(old.size, head.size, hashes)
            verify_consistency(old.size, head.size, proof, shown, head.root)
        except (ProofError, NotFound, FormatError) as error:
            message = f"the log cannot show that its {head.size} entries extend its {old.size}: {error}"
            raise self._accused(kinds.UNPROVEN, Evidence(seen.note, note), message) from error
        if shown != old.root:
            raise self._forked(Evidence(seen.note, note, shown, proof), old, head)

    def _forked(self, evidence: Evidence, old: Checkpoint, head: Checkpoint) -> _Told:
        message = f"the log has signed {head.size} entries that do not extend the {old.size} signed before"
        if old.size == head.size:
            message = f"the log has signed two different trees of {old.size} entries"
        return self._accused(kinds.FORK, evidence, message)

    def _accused(self, kind: str, evidence: Evidence, message: str) -> _Told:
        with self._memory.batch():
            self._memory.accuse(kind, evidence)
        return _Told(Finding(kind, kind, message, evidence=evidence))

    def _quorum_time(self, data: bytes) -> float | None:
        policy = self._limits.policy
        if policy is None:
            return None
        try:
            vouched = quorum_time(policy, policy.cosigned(Note.from_bytes(data)))
        except SignatureError:  # of a witness: treated as missing
            return None
        return None if vouched is None else vouched.timestamp()

    def _ahead(self, files: TileFiles, head: Checkpoint) -> Iterator[bytes]:
        """The new entries under a checkpoint that no known key has signed. Raises FormatError or ProofError for a batch
        that does not lead to its root: a server can make up entries without end, but not under one root.
        """
        hashes, entries, frontier = (
            TileHashes(TiledTree(files, head.size)),
            self._entries(files, head),
            self._summary.walk.frontier,
        )
        while batch := list(islice(entries, _BATCH)):
            for index, data in enumerate(batch, frontier.size):
                if Entry.from_bytes(data).index != index:
                    raise FormatError(f"entry {index}", "has another index")
            frontier = frontier.extended(map(leaf_hash, batch))
            _check_leads_to(frontier, head, hashes)
            yield from batch

    def _entries(self, files: TileFiles, head: Checkpoint) -> Iterator[bytes]:
        return TiledTree(files, head.size).entries(self._summary.size)

    def _read(self, files: TileFiles, head: Checkpoint, now: datetime) -> None:
        """Read all new entries under a checkpoint, which existed at `now`."""
        self._summary.walk.clock.now_is(now)
        hashes, entries = TileHashes(TiledTree(files, head.size)), self._entries(files, head)
        while self._summary.size < head.size:
            try:
                with self._memory.batch():
                    self._take(islice(entries, _BATCH), head, hashes)
            except CheckFailed as failed:
                raise _Told(Finding(kinds.INVALID, kinds.INVALID, str(failed), failed.index)) from failed
            except (FormatError, ProofError, NotFound) as error:
                message = f"the entries that the log shows are not the signed ones: {error}"
                raise _Told(Finding(kinds.UNPROVEN, kinds.UNPROVEN, message)) from error

    def _check_key(self, data: bytes, head: Checkpoint) -> None:
        """Check, after all entries have been read, that the checkpoint's key was not replaced before."""
        try:
            _check_signed(Note.from_bytes(data), head, self._summary.walk.keys)
        except SignatureError as error:
            raise _Told(Finding(kinds.CHECKPOINT, kinds.CHECKPOINT, str(error))) from error

    def _take(self, entries: Iterator[bytes], head: Checkpoint, hashes: TileHashes) -> None:
        """Read a batch; an invalid batch does not change the summary."""
        summary, start = self._summary, self._summary.size
        try:
            for data in entries:
                summary.take(data)
            size = summary.size
            if size == start:
                raise ProofError(f"the log shows no entries after entry {size}")
            _check_leads_to(summary.walk.frontier, head, hashes)
            self._memory.save(summary.to_document())
        except BaseException:
            self._summary = self._loaded()
            raise


def _check_leads_to(frontier: Frontier, head: Checkpoint, hashes: TileHashes) -> None:
    """Raises ProofError unless the entries of a frontier are the first entries under a checkpoint."""
    proof = consistency_proof(frontier.size, head.size, hashes)
    verify_consistency(frontier.size, head.size, proof, frontier.root(), head.root)


def _check_signed(note: Note, head: Checkpoint, keys: KeyHistory) -> None:
    """Raises SignatureError unless a key signed that was the log's key for this size."""
    verify_note(note, head.origin, keys.at(max(head.size - 1, 0)).keys("log"))

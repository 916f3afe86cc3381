"""The one writer: gives admitted envelopes their place, makes them durable, and signs the tree head over
the bytes read back.

Single-threaded on purpose; `sequencer.Sequencer` puts a queue and a thread in front of it. Three writes a batch:

    1. commit   entries, index rows, content and tiles, all or nothing
    2. guard    the head over the bytes read back after 1 takes the place of the one before it, in another database
    3. record   the checkpoint, signed over that head

A crash before 1 has returned leaves nothing, or entries that nobody was told about. A crash between 1 and 3 leaves
durable entries without a checkpoint; `recovery.recover` checks and signs them at the next start, to the same bytes. A
crash after 3 leaves callers without their answer; the same envelope sent again gets the same index. No signed head is
ever taken back: it is in the guard, and a database without it is not written to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ledger.errors import ChainError, LedgerError
from ledger.keys.signer import Signer
from ledger.log.admission import Admitted
from ledger.log.batch_plan import BatchPlan, LogState, plan_batch
from ledger.log.guard import Guard
from ledger.log.store import Batch, EntryStore, Record
from ledger.log.tree_head import TreeHead
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.entry import entry_hash
from ledger.tree.merkle import Frontier, inclusion_proofs, leaf_hash, tree_root
from ledger.tree.tile import TileHashes


@dataclass(frozen=True, slots=True)
class Appended:
    """The answer to an append: everything needed to prove, offline, that the log holds the envelope.

    `entry` is the leaf's bytes at `index`, `entry_hash` what the next entry names as `previous`. `inclusion_proof`
    leads from the leaf to the root of `checkpoint` (a signed note over `tree_size` entries). `halt_epoch` counts the
    halts in those entries. An envelope that was in the log already gets its old index.
    """

    index: int
    entry: bytes
    entry_hash: str
    checkpoint: bytes
    tree_size: int
    inclusion_proof: tuple[bytes, ...]
    halt_epoch: int


@dataclass(frozen=True, slots=True)
class WriteTimes:
    """How long a batch of `entries` took, in seconds: the transaction, the guard, signing and recording the head."""

    entries: int
    commit: float
    guard: float
    sign: float


OnWritten = Callable[[WriteTimes], None]
"""Told of each batch that was written, on the writing thread; must not raise."""


def ignore_times(_: WriteTimes) -> None:
    """Nobody wants to know."""


class LogWriter:
    """Appends to a store. Made by `recovery.recover`; after any exception from `write`, recover before writing on."""

    def __init__(
        self,
        store: EntryStore,
        key: Signer,
        state: LogState,
        head: TreeHead,
        guard: Guard | None = None,
        on_written: OnWritten = ignore_times,
    ) -> None:
        self._store = store
        self._guard = guard
        self._key = key
        self._state = state
        self._head = head
        self._hashes = TileHashes(store)
        self._on_written = on_written

    @property
    def head(self) -> TreeHead:
        """The latest head that is signed and recorded."""
        return self._head

    def write(self, batch: Sequence[Admitted]) -> list[Appended | LedgerError]:
        """Append what is new, durably, and answer each envelope in order: its place and proof, or why it has none.

        Raises StoreError where a database failed (whether the batch was written is then unknown), StoreLocked where
        another process has taken the log over, ChainError where the database gave back other bytes than were written.
        """
        plan = plan_batch(self._store, self._state, batch)
        if plan.records:
            self._persist(plan)
        return self._answers(plan)

    def _persist(self, plan: BatchPlan) -> None:
        leaves = [leaf_hash(record.entry) for record in plan.records]
        edge, tiles = self._state.edge.append(leaves)
        started = time.perf_counter()
        self._store.commit(Batch(tuple(plan.records), tiles))
        committed = time.perf_counter()
        # From here on the entries are in the log for good; a crash leaves them for recovery to sign.
        self._check_read_back(plan.records)
        state = LogState(self._frontier(leaves), edge, plan.previous, plan.halts)
        checkpoint = Checkpoint(self._head.checkpoint.origin, state.frontier.size, state.frontier.root())
        read_back = time.perf_counter()
        if self._guard is not None:
            self._guard.compare_and_swap(self._head.checkpoint, checkpoint)
        guarded = time.perf_counter()
        # From here on a database without these entries is refused, so no signed head can be taken back.
        note = sign_checkpoint(checkpoint, self._key)
        self._store.record_checkpoint(checkpoint.size, note)
        # From here on the head is published; a crash leaves callers to ask again and get the same answer.
        self._state, self._head = state, TreeHead(checkpoint, note, plan.halts)
        times = WriteTimes(len(plan.records), committed - started, guarded - read_back, time.perf_counter() - guarded)
        self._on_written(times)

    def _check_read_back(self, records: Sequence[Record]) -> None:
        """A head is signed over what the database returns, never over what we meant to write."""
        stored = self._store.entries(records[0].index, len(records))
        for record, data in zip(records, stored, strict=False):
            if data != record.entry:
                raise ChainError(record.index, "the database gave back other bytes than were written")
        if len(stored) != len(records):
            raise ChainError(records[0].index + len(stored), "the database does not give back what was written")

    def _frontier(self, leaves: Sequence[bytes]) -> Frontier:
        """With more leaves. Raises ChainError where the tiles that the database returns have another root."""
        frontier = self._state.frontier
        for leaf in leaves:
            frontier = frontier.append(leaf)
        if tree_root(frontier.size, self._hashes) != frontier.root():
            raise ChainError(frontier.size - 1, "the tiles in the database are not those of the entries")
        return frontier

    def _answers(self, plan: BatchPlan) -> list[Appended | LedgerError]:
        indexes = [place for place in plan.places if isinstance(place, int)]
        proofs = dict(zip(indexes, inclusion_proofs(indexes, self._head.size, self._hashes), strict=True))
        return [
            place if isinstance(place, LedgerError) else self._answer(place, plan.new.get(place), proofs[place])
            for place in plan.places
        ]

    def _answer(self, index: int, written: tuple[bytes, str] | None, proof: tuple[bytes, ...]) -> Appended:
        if written is None:  # the log held it before
            entry = self._store.entry(index)
            written = entry, entry_hash(entry)
        return Appended(
            index=index,
            entry=written[0],
            entry_hash=written[1],
            checkpoint=self._head.note,
            tree_size=self._head.size,
            inclusion_proof=proof,
            halt_epoch=self._head.halts.epoch,
        )

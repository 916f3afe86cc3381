"""The only writer: it gives admitted envelopes their index, makes them durable, and signs the tree head over the bytes
read back.

Single-threaded; `sequencer.Sequencer` adds a queue and a thread. A batch is planned without a write; then there are
three writes:

    1. commit   entries, index rows, content and tiles, all or nothing
    2. guard    the head over the bytes read back after 1 replaces its predecessor, in another database
    3. record   the checkpoint, signed over that head

A crash before 1 has returned leaves nothing, or entries that were not acknowledged. A crash between 1 and 3 leaves
durable entries without a checkpoint; `recovery.recover` checks and signs them at the next start, to the same bytes. A
crash after 3 leaves callers without their answer; the same envelope sent again gets the same index. No signed head is
ever taken back: it is in the guard, and a database without it is not written to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ledger.documents.erasure import Erasure, Expiry, Retention
from ledger.documents.halt import HaltState, Resume
from ledger.documents.key_entry import KeyEntry
from ledger.documents.key_history import KeyHistory
from ledger.documents.receipt import Receipt
from ledger.documents.reference_rules import JudgedOutput, follow
from ledger.documents.signed_document import open_document
from ledger.errors import ChainError, Conflict, FormatError, LedgerError, SignatureError
from ledger.keys.ed25519 import PublicKey
from ledger.keys.envelope import Envelope
from ledger.keys.signer import Signer
from ledger.log.admission import Admitted
from ledger.log.continuity import Guard
from ledger.log.store import Batch, EntryStore, Record
from ledger.log.tree_head import TreeHead
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.entry import entry_bytes, signed_by
from ledger.tree.merkle import Frontier, inclusion_proofs, leaf_hash, tree_root
from ledger.tree.tile import TileEdge, TileHashes


@dataclass(frozen=True, slots=True)
class LogState:
    """The state that the writer keeps between batches."""

    frontier: Frontier
    edge: TileEdge
    halts: HaltState
    keys: KeyHistory


@dataclass(slots=True)
class BatchPlan:
    """A batch in preparation.

    `places` has the index of each envelope, in order, or the error. `records` are to be written, and `halts` and `keys`
    are the state after them. `by_digest` and `by_receipt_id` have the indexes of the batch's envelopes, stored and new;
    stored receipts are in `by_receipt_id` alone. `erased` maps receipts to the erasures among the records.
    """

    store: EntryStore
    log_key: PublicKey
    size: int
    halts: HaltState
    keys: KeyHistory
    by_digest: dict[bytes, int]
    by_receipt_id: dict[str, int]
    records: list[Record] = field(default_factory=list)
    places: list[int | LedgerError] = field(default_factory=list)
    erased: dict[int, int] = field(default_factory=dict)

    def place(self, admitted: Admitted) -> int:
        """The index of a stored envelope, or the next index, with a record for it.

        Raises FormatError, SignatureError, Conflict.
        """
        digest, document = admitted.envelope_digest, admitted.document
        if digest in self.by_digest:
            return self.by_digest[digest]
        if isinstance(document, Receipt) and document.receipt_id in self.by_receipt_id:
            taken = self.by_receipt_id[document.receipt_id]
            if taken < self.size and self.store.entry(taken) == entry_bytes(taken, admitted.envelope):
                return taken
            raise Conflict(f"entry {taken} holds another receipt with the id {document.receipt_id}")
        if isinstance(document, Erasure):
            self._refuse_second(document)
        if isinstance(document, Expiry) and document.end_index > self.size:
            raise FormatError("end_index", f"is {document.end_index}, the log holds {self.size} entries")
        index = self.size + len(self.records)
        self._check_signers(index, admitted)
        halts, keys = follow(index, document, self.halts, self), self.keys.after(index, document)
        entry = entry_bytes(index, admitted.envelope)
        self.records.append(Record(index, entry, leaf_hash(entry), digest, document, admitted.content))
        self.by_digest[digest] = index
        if isinstance(document, Receipt):
            self.by_receipt_id[document.receipt_id] = index
        if isinstance(document, Erasure):
            self.erased[document.receipt_index] = index
        self.halts, self.keys = halts, keys
        return index

    def receipt_id_at(self, index: int) -> str | None:
        """`reference_rules.References`, as the next three: answered from the log."""
        return self.store.receipt_id_at(index)

    def output_at(self, index: int) -> JudgedOutput | None:
        return self.store.output_at(index)

    def accuses(self, index: int) -> bool:
        return self.store.accuses(index)

    def retentions(self) -> list[tuple[int, Retention]]:
        """The policies, with those of this batch: an expiry after a policy in one batch uses the new policy."""
        planned = ((record.index, record.document) for record in self.records)
        return [*self.store.retentions(), *((at, policy) for at, policy in planned if isinstance(policy, Retention))]

    def _check_signers(self, index: int, admitted: Admitted) -> None:
        """The rules of verifiers for signers that depend on the entries before: a key signs nothing after its
        replacement, and nothing before it replaces another; the number of operators is that of the index. Raises
        FormatError, SignatureError.
        """
        document = admitted.document
        self.keys.check_not_replaced(index, admitted.signers, document.SIGNERS)
        if isinstance(document, Resume | KeyEntry) and admitted.trusted is not None:
            open_document(Envelope.from_bytes(admitted.envelope), admitted.trusted, index)
        if isinstance(document, KeyEntry) and document.replaces is not None:
            key_id = document.public_key.key_id
            if document.role == "log" and document.public_key != self.log_key:
                raise FormatError(
                    "public_key", f"this ledger signs with {self.log_key.key_id}; start it with the new key"
                )
            planned = any(signed_by(key_id) in record.entry for record in self.records)
            if planned or self.store.has_signed(key_id):
                raise FormatError("public_key", f"{key_id} has signed entries already; a new key has to replace a key")

    def _refuse_second(self, erasure: Erasure) -> None:
        """Raises Conflict if the content is erased already: a second reason would only cast doubt on the first."""
        before = self.erased.get(erasure.receipt_index)
        before = self.store.erased_by(erasure.receipt_index) if before is None else before
        if before is not None:
            raise Conflict(f"entry {before} has erased the content of {erasure.receipt_id} already")


def plan_batch(store: EntryStore, log_key: PublicKey, state: LogState, batch: Sequence[Admitted]) -> BatchPlan:
    """Place the envelopes of a batch in order after `state`. Raises StoreError."""
    receipts = [admitted.document for admitted in batch if isinstance(admitted.document, Receipt)]
    others = [admitted.envelope_digest for admitted in batch if not isinstance(admitted.document, Receipt)]
    plan = BatchPlan(
        store,
        log_key,
        state.frontier.size,
        state.halts,
        state.keys,
        dict(store.indexes_of_envelopes(others)),
        dict(store.indexes_of_receipts([receipt.receipt_id for receipt in receipts])),
    )
    for admitted in batch:
        try:
            plan.places.append(plan.place(admitted))
        except (FormatError, SignatureError, Conflict) as error:
            plan.places.append(error)
    return plan


@dataclass(frozen=True, slots=True)
class Appended:
    """The answer to an append: all that proves, offline, that the log holds the envelope.

    `inclusion_proof` leads from the leaf (index and `envelope`) to the root of `checkpoint` (a signed note over
    `tree_size` entries). `halt_epoch` counts the halts in those entries. A stored envelope keeps its index.
    """

    index: int
    envelope: bytes
    checkpoint: bytes
    tree_size: int
    inclusion_proof: tuple[bytes, ...]
    halt_epoch: int

    @property
    def entry(self) -> bytes:
        """The bytes of the leaf."""
        return entry_bytes(self.index, self.envelope)


@dataclass(frozen=True, slots=True)
class WriteTimes:
    """The seconds that a batch of `entries` took: the transaction, the guard, signing and recording the head."""

    entries: int
    commit: float
    guard: float
    sign: float


OnWritten = Callable[[WriteTimes], None]
"""Called after each written batch, on the writing thread; must not raise."""


def ignore_times(_: WriteTimes) -> None:
    """Default: timings are discarded."""


class LogWriter:
    """Appends to a store. Made by `recovery.recover`; after any exception from `write`, recover before writing on."""

    def __init__(
        self,
        store: EntryStore,
        key: Signer,
        state: LogState,
        head: TreeHead,
        guard: Guard,
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
        """Append new envelopes durably, and answer each envelope in order: its index and proof, or an error.

        Raises StoreError if a database failed (it is unknown whether the batch was written), StoreLocked if another
        process has taken the log over, ChainError if the database returned other bytes than were written.
        """
        plan = plan_batch(self._store, self._key.public, self._state, batch)
        if plan.records:
            self._persist(plan)
        elif any(isinstance(admitted.document, Erasure | Expiry) for admitted in batch):
            self._store.probe()  # a stored erasure is answered once its content's key is destroyed
        return self._answers(plan.places, batch)

    def _persist(self, plan: BatchPlan) -> None:
        leaves = [record.leaf for record in plan.records]
        edge, tiles = self._state.edge.append(leaves)
        started = time.perf_counter()
        self._store.commit(Batch(tuple(plan.records), tiles))
        committed = time.perf_counter()
        # From here on the entries are in the log for good; a crash leaves them for recovery to sign.
        self._check_read_back(plan.records)
        state = LogState(self._frontier(leaves), edge, plan.halts, plan.keys)
        checkpoint = Checkpoint(self._head.checkpoint.origin, state.frontier.size, state.frontier.root())
        read_back = time.perf_counter()
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
        """Raises ChainError unless the database returns the written bytes: a head is signed over the bytes read
        back.
        """
        stored = self._store.entries(records[0].index, len(records))
        for record, data in zip(records, stored, strict=False):
            if data != record.entry:
                raise ChainError(record.index, "the database returned other bytes than were written")
        if len(stored) != len(records):
            raise ChainError(records[0].index + len(stored), "the database does not return the written entry")

    def _frontier(self, leaves: Sequence[bytes]) -> Frontier:
        """The frontier with more leaves. Raises ChainError if the tiles from the database have another root."""
        frontier = self._state.frontier.extended(leaves)
        if tree_root(frontier.size, self._hashes) != frontier.root():
            raise ChainError(frontier.size - 1, "the tiles in the database do not have the hashes of the entries")
        return frontier

    def _answers(self, places: Sequence[int | LedgerError], batch: Sequence[Admitted]) -> list[Appended | LedgerError]:
        indexes = [place for place in places if isinstance(place, int)]
        proofs = dict(zip(indexes, inclusion_proofs(indexes, self._head.size, self._hashes), strict=True))
        note, size, epoch = self._head.note, self._head.size, self._head.halts.epoch
        return [
            place if isinstance(place, LedgerError) else Appended(place, one.envelope, note, size, proofs[place], epoch)
            for place, one in zip(places, batch, strict=True)
        ]

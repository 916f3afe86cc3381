"""The one writer: gives admitted envelopes their place, makes them durable, and signs the head over what it reads back.

Single-threaded on purpose; `sequencer.Sequencer` puts a queue and a thread in front of it. Three writes a batch:

    1. commit   entries, index rows, content and tiles, all or nothing
    2. guard    the head over the bytes read back after 1 takes the place of the one before it, in another database
    3. record   the checkpoint, signed over that head

A crash before 1 has returned leaves nothing, or entries that nobody was told about. A crash between 1 and 3 leaves
durable entries without a checkpoint; `recovery.recover` checks and signs them at the next start, to the same bytes. A
crash after 3 leaves callers without their answer; the same envelope sent again gets the same index. In no case is a
signed head ever taken back: what was signed is in the guard, and a database without it is not written to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ledger.documents.erasure import Erasure
from ledger.documents.halt import HaltState
from ledger.documents.receipt import Receipt
from ledger.documents.reference_rules import follow
from ledger.errors import ChainError, Conflict, FormatError, LedgerError
from ledger.keys.ed25519 import SigningKey
from ledger.log.admission import Admitted
from ledger.log.append_answer import Appended
from ledger.log.erasure_lookup import erasure_of
from ledger.log.guard import Guard
from ledger.log.store import Batch, EntryStore, Record
from ledger.log.tree_head import TreeHead
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.entry import entry_bytes, entry_hash
from ledger.tree.merkle import Frontier, inclusion_proofs, leaf_hash, tree_root
from ledger.tree.tile import TileEdge, TileHashes


@dataclass(frozen=True, slots=True)
class LogState:
    """All that the writer must remember between batches. `previous` is the hash of the last entry."""

    frontier: Frontier
    edge: TileEdge
    previous: str
    halts: HaltState


@dataclass(slots=True)
class _Plan:
    """A batch while it is being put together: what to write, and where each envelope of the batch stands or will stand.

    `by_digest` and `by_receipt_id` know all names of the batch that the log holds, and those that the plan adds.
    `written` is the bytes and the hash of each entry that the plan adds, by index.
    """

    previous: str
    halts: HaltState
    by_digest: dict[bytes, int]
    by_receipt_id: dict[str, int]
    records: list[Record] = field(default_factory=list)
    written: dict[int, tuple[bytes, str]] = field(default_factory=dict)
    places: list[int | LedgerError] = field(default_factory=list)


class LogWriter:
    """Appends to a store. Made by `recovery.recover`; after any exception from `write`, recover before writing on."""

    def __init__(
        self, store: EntryStore, key: SigningKey, state: LogState, head: TreeHead, guard: Guard | None = None
    ) -> None:
        self._store = store
        self._guard = guard
        self._key = key
        self._state = state
        self._head = head
        self._hashes = TileHashes(store)

    @property
    def head(self) -> TreeHead:
        """The latest head that is signed and recorded."""
        return self._head

    def write(self, batch: Sequence[Admitted]) -> list[Appended | LedgerError]:
        """Append what is new, durably, and answer each envelope in order: its place and proof, or why it has none.

        Raises StoreError where a database failed (whether the batch was written is then unknown), StoreLocked where
        another process has taken the log over, ChainError where the database gave back other bytes than were written.
        """
        plan = self._plan(batch)
        if plan.records:
            self._persist(plan)
        return self._answers(plan)

    def _plan(self, batch: Sequence[Admitted]) -> _Plan:
        plan = _Plan(
            self._state.previous,
            self._state.halts,
            dict(self._store.indexes_of_envelopes([admitted.envelope_digest for admitted in batch])),
            dict(
                self._store.indexes_of_receipts(
                    [a.document.receipt_id for a in batch if isinstance(a.document, Receipt)]
                )
            ),
        )
        for admitted in batch:
            try:
                plan.places.append(self._place(plan, admitted))
            except (FormatError, Conflict) as error:
                plan.places.append(error)
        return plan

    def _place(self, plan: _Plan, admitted: Admitted) -> int:
        """The index of an envelope: the one that it has already, or the next, with a record for it in the plan."""
        digest, document = admitted.envelope_digest, admitted.document
        if digest in plan.by_digest:
            return plan.by_digest[digest]
        if isinstance(document, Receipt) and document.receipt_id in plan.by_receipt_id:
            taken = plan.by_receipt_id[document.receipt_id]
            raise Conflict(f"entry {taken} holds another receipt with the id {document.receipt_id}")
        if isinstance(document, Erasure):
            self._refuse_second(plan, document)
        index = self._state.frontier.size + len(plan.records)
        halts = follow(index, document, plan.halts, self._store)
        entry = entry_bytes(index, plan.previous, admitted.envelope)
        plan.records.append(Record(index, entry, digest, document, admitted.content))
        plan.by_digest[digest] = index
        if isinstance(document, Receipt):
            plan.by_receipt_id[document.receipt_id] = index
        plan.previous, plan.halts = entry_hash(entry), halts
        plan.written[index] = entry, plan.previous
        return index

    def _refuse_second(self, plan: _Plan, erasure: Erasure) -> None:
        """There is nothing left to erase, and a second reason would only cast doubt on the first."""
        planned = (
            record.index
            for record in plan.records
            if isinstance(record.document, Erasure) and record.document.receipt_index == erasure.receipt_index
        )
        before = erasure_of(self._store, erasure.receipt_index)
        before = next(planned, None) if before is None else before
        if before is not None:
            raise Conflict(f"entry {before} has erased the content of {erasure.receipt_id} already")

    def _persist(self, plan: _Plan) -> None:
        edge, tiles = self._state.edge.append(leaf_hash(record.entry) for record in plan.records)
        self._store.commit(Batch(tuple(plan.records), tiles))
        # From here on the entries are in the log for good; a crash leaves them for recovery to sign.
        state = LogState(self._read_back(plan.records), edge, plan.previous, plan.halts)
        checkpoint = Checkpoint(self._head.checkpoint.origin, state.frontier.size, state.frontier.root())
        if self._guard is not None:
            self._guard.compare_and_swap(self._head.checkpoint, checkpoint)
        # From here on a database without these entries is refused, so that the signature can never become a lie.
        note = sign_checkpoint(checkpoint, self._key)
        self._store.record_checkpoint(checkpoint.size, note)
        # From here on the head is published; a crash leaves callers to ask again and get the same answer.
        self._state, self._head = state, TreeHead(checkpoint, note, plan.halts)

    def _read_back(self, records: Sequence[Record]) -> Frontier:
        """The frontier over what the database really holds now, never over what we meant to write."""
        frontier = self._state.frontier
        stored = self._store.entries(frontier.size, len(records))
        for record, data in zip(records, stored, strict=False):
            if data != record.entry:
                raise ChainError(record.index, "the database gave back other bytes than were written")
            frontier = frontier.append(leaf_hash(data))
        if len(stored) != len(records):
            raise ChainError(frontier.size, "the database does not give back what was written")
        if tree_root(frontier.size, self._hashes) != frontier.root():
            raise ChainError(frontier.size - 1, "the tiles in the database are not those of the entries")
        return frontier

    def _answers(self, plan: _Plan) -> list[Appended | LedgerError]:
        indexes = [place for place in plan.places if isinstance(place, int)]
        proofs = dict(zip(indexes, inclusion_proofs(indexes, self._head.size, self._hashes), strict=True))
        return [
            place if isinstance(place, LedgerError) else self._answer(place, plan.written.get(place), proofs[place])
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

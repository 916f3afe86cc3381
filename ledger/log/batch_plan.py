"""The plan of a batch: the place of each envelope, and a record for each that is new. Writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ledger.documents.erasure import Erasure, Expiry, Retention
from ledger.documents.halt import HaltState
from ledger.documents.receipt import Receipt
from ledger.documents.reference_rules import follow
from ledger.errors import Conflict, FormatError, LedgerError
from ledger.log.admission import Admitted
from ledger.log.store import EntryStore, Record
from ledger.tree.entry import entry_bytes, entry_hash
from ledger.tree.merkle import Frontier
from ledger.tree.tile import TileEdge


@dataclass(frozen=True, slots=True)
class LogState:
    """The state that the writer keeps between batches. `previous` is the hash of the last entry."""

    frontier: Frontier
    edge: TileEdge
    previous: str
    halts: HaltState


@dataclass(slots=True)
class BatchPlan:
    """A batch while it is put together.

    `places` has, for each envelope in order, the index where it stands or will stand, or why it has none. `records` are
    to be written; `new` has the bytes and the hash of their entries, by index. `previous` and `halts` are the state
    after them. `by_digest` and `by_receipt_id` know all names of the batch that the log holds, and those that are new.
    `erased` has the receipts that erasures among the records are about, with their indexes.
    """

    store: EntryStore
    size: int
    previous: str
    halts: HaltState
    by_digest: dict[bytes, int]
    by_receipt_id: dict[str, int]
    records: list[Record] = field(default_factory=list)
    new: dict[int, tuple[bytes, str]] = field(default_factory=dict)
    places: list[int | LedgerError] = field(default_factory=list)
    erased: dict[int, int] = field(default_factory=dict)

    def place(self, admitted: Admitted) -> int:
        """The index that an envelope has already, or the next one, with a record for it.

        Raises FormatError, Conflict.
        """
        digest, document = admitted.envelope_digest, admitted.document
        if digest in self.by_digest:
            return self.by_digest[digest]
        if isinstance(document, Receipt) and document.receipt_id in self.by_receipt_id:
            taken = self.by_receipt_id[document.receipt_id]
            raise Conflict(f"entry {taken} holds another receipt with the id {document.receipt_id}")
        if isinstance(document, Erasure):
            self._refuse_second(document)
        if isinstance(document, Expiry) and document.end_index > self.size:
            raise FormatError("end_index", f"is {document.end_index}, the log holds {self.size} entries")
        index = self.size + len(self.records)
        halts = follow(index, document, self.halts, self)
        entry = entry_bytes(index, self.previous, admitted.envelope)
        self.records.append(Record(index, entry, digest, document, admitted.content))
        self.by_digest[digest] = index
        if isinstance(document, Receipt):
            self.by_receipt_id[document.receipt_id] = index
        if isinstance(document, Erasure):
            self.erased[document.receipt_index] = index
        self.previous, self.halts = entry_hash(entry), halts
        self.new[index] = entry, self.previous
        return index

    def receipt_id_at(self, index: int) -> str | None:
        """`reference_rules.References`, as the others here: by what the log holds."""
        return self.store.receipt_id_at(index)

    def outcome_at(self, index: int) -> str | None:
        return self.store.outcome_at(index)

    def retentions(self) -> list[tuple[int, Retention]]:
        """The policies, this batch's too: an expiry behind a policy must not follow the one that it replaces."""
        planned = ((record.index, record.document) for record in self.records)
        return [*self.store.retentions(), *((at, policy) for at, policy in planned if isinstance(policy, Retention))]

    def _refuse_second(self, erasure: Erasure) -> None:
        """There is nothing left to erase, and a second reason would only cast doubt on the first."""
        before = self.erased.get(erasure.receipt_index)
        before = self.store.erased_by(erasure.receipt_index) if before is None else before
        if before is not None:
            raise Conflict(f"entry {before} has erased the content of {erasure.receipt_id} already")


def plan_batch(store: EntryStore, state: LogState, batch: Sequence[Admitted]) -> BatchPlan:
    """Place the envelopes of a batch in order after `state`. Raises StoreError."""
    receipts = [admitted.document for admitted in batch if isinstance(admitted.document, Receipt)]
    plan = BatchPlan(
        store,
        state.frontier.size,
        state.previous,
        state.halts,
        dict(store.indexes_of_envelopes([admitted.envelope_digest for admitted in batch])),
        dict(store.indexes_of_receipts([receipt.receipt_id for receipt in receipts])),
    )
    for admitted in batch:
        try:
            plan.places.append(plan.place(admitted))
        except (FormatError, Conflict) as error:
            plan.places.append(error)
    return plan

"""An EntryStore and a Guard in memory, under the contract suites of those on SQLite. For tests that need no disk.

store = MemoryEntryStore()
sequencer = Sequencer(store, KEYS["log"], TRUSTED, ORIGIN, guard=MemoryGuard())
"""

import threading
from collections.abc import Iterable, Mapping, Sequence

from ledger.documents.audit import ACCUSATIONS, Verdict
from ledger.documents.content import Content
from ledger.documents.erasure import Erasure, Expiry, Retention
from ledger.documents.receipt import Receipt
from ledger.documents.reference_rules import JudgedOutput
from ledger.documents.signed_document import kind_of
from ledger.errors import NotFound, StoreError, StoreLocked
from ledger.log.content_seal import unpacked
from ledger.log.receipt_filter import ReceiptFilter
from ledger.log.store import Batch, ReceiptRow, Record, VerdictRow, indexable, retentions_of
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.entry import signed_by
from tests.mutations import replace


class MemoryEntryStore:
    """Keeps the contract of `ledger.log.store.EntryStore`, durability excepted."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._tiles: dict[tuple[int, int], bytes] = {}
        self._checkpoints: dict[int, bytes] = {}
        self._erased: dict[int, int] = {}
        self._lock = threading.RLock()

    def size(self) -> int:
        return len(self._records)

    def commit(self, batch: Batch) -> None:
        with self._lock:
            expected = range(len(self._records), len(self._records) + len(batch.records))
            if [record.index for record in batch.records] != list(expected):
                raise StoreError("expected a batch from the next index on")
            self._check_unique([*self._records, *batch.records])
            self._records.extend(batch.records)
            for record in batch.records:
                if isinstance(record.document, Erasure):
                    self._erase(record.document.receipt_index, record.index)
                if isinstance(record.document, Expiry):
                    for index in self.expired(record.document, None):
                        self._erase(index, record.index)
            self._tiles.update({(tile.level, tile.number): tile.hashes for tile in batch.tiles})

    def _check_unique(self, records: Sequence[Record]) -> None:
        ids = [record.document.receipt_id for record in records if isinstance(record.document, Receipt)]
        if len(set(ids)) != len(ids) or len({record.envelope_digest for record in records}) != len(records):
            raise StoreError("an envelope or a receipt id is there already")

    def record_checkpoint(self, size: int, note: bytes) -> None:
        if self._checkpoints.setdefault(size, note) != note:
            raise StoreError(f"another checkpoint of size {size} is recorded already")

    def probe(self) -> None:
        pass

    def check_held(self) -> None:
        pass

    def latest_checkpoint(self) -> bytes | None:
        return self._checkpoints[max(self._checkpoints)] if self._checkpoints else None

    def entry(self, index: int) -> bytes:
        if not 0 <= index < len(self._records):
            raise NotFound(f"the ledger holds no entry {index}")
        return self._records[index].entry

    def entries(self, start: int, limit: int) -> Sequence[bytes]:
        return [record.entry for record in self._records[start : start + limit]]

    def entries_of(self, kinds: Iterable[str], start: int = 0) -> Sequence[tuple[int, bytes]]:
        wanted = set(kinds)
        return [(record.index, record.entry) for record in self._records[start:] if kind_of(record.document) in wanted]

    def tile(self, level: int, number: int) -> bytes:
        if (level, number) not in self._tiles:
            raise NotFound(f"the ledger holds no tile {level}/{number}")
        return self._tiles[level, number]

    def about(self, start: int, end: int) -> Iterable[int]:
        return [
            record.index
            for record in self._records
            if isinstance(record.document, Verdict | Erasure) and start <= record.document.receipt_index < end
        ]

    def has_signed(self, key_id: str) -> bool:
        return any(signed_by(key_id) in record.entry for record in self._records)

    def indexes_of_envelopes(self, digests: Sequence[bytes]) -> Mapping[bytes, int]:
        others = (record for record in self._records if not isinstance(record.document, Receipt))
        return {record.envelope_digest: record.index for record in others if record.envelope_digest in digests}

    def indexes_of_receipts(self, receipt_ids: Sequence[str]) -> Mapping[str, int]:
        return {receipt.receipt_id: index for index, receipt in self._receipts() if receipt.receipt_id in receipt_ids}

    def receipt_id_at(self, index: int) -> str | None:
        return next((receipt.receipt_id for at, receipt in self._receipts() if at == index), None)

    def output_at(self, index: int) -> JudgedOutput | None:
        return next((JudgedOutput.of(receipt) for at, receipt in self._receipts() if at == index), None)

    def accuses(self, index: int) -> bool:
        return any(verdict.outcome in ACCUSATIONS for at, verdict in self._verdicts() if at == index)

    def retentions(self) -> Sequence[tuple[int, Retention]]:
        return retentions_of(self)

    def expired(self, expiry: Expiry, limit: int | None) -> Sequence[int]:
        covered = [
            index for index, receipt in self._receipts() if expiry.covers(index, receipt.tenant, receipt.issued_at)
        ]
        return [index for index in covered if self._records[index].content is not None][:limit]

    def content(self, receipt_index: int) -> Content | None:
        packed = self._records[receipt_index].content if receipt_index < len(self._records) else None
        return None if packed is None else unpacked(packed)

    def has_content(self, receipt_index: int) -> bool:
        return self.content(receipt_index) is not None

    def erased_by(self, receipt_index: int) -> int | None:
        return self._erased.get(receipt_index)

    def _erase(self, index: int, by: int) -> None:
        self._erased.setdefault(index, by)
        self._records[index] = replace(self._records[index], content=None)

    def receipts(self, narrow: ReceiptFilter, after: int, limit: int) -> Sequence[ReceiptRow]:
        rows = [
            self._receipt_row(index, receipt)
            for index, receipt in self._receipts()
            if index > after and narrow.commitment in (None, receipt.prompt.commitment, receipt.output.commitment)
        ]
        return [row for row in rows if _matches(row, narrow)][:limit]

    def verdicts(
        self, receipt_id: str | None, after: int, limit: int, outcome: str | None = None, *, newest_first: bool = False
    ) -> Sequence[VerdictRow]:
        rows = [
            VerdictRow(index, verdict.receipt_id, verdict.receipt_index, verdict.outcome, self._records[index].entry)
            for index, verdict in self._verdicts()
            if (index < after if newest_first else index > after)
            and receipt_id in (None, verdict.receipt_id)
            and outcome in (None, verdict.outcome)
        ]
        return rows[::-1][:limit] if newest_first else rows[:limit]

    def close(self) -> None:
        pass

    def _receipts(self) -> list[tuple[int, Receipt]]:
        return [(r.index, r.document) for r in list(self._records) if isinstance(r.document, Receipt)]

    def _verdicts(self) -> list[tuple[int, Verdict]]:
        return [(r.index, r.document) for r in list(self._records) if isinstance(r.document, Verdict)]

    def _receipt_row(self, index: int, receipt: Receipt) -> ReceiptRow:
        outcomes = [verdict.outcome for _, verdict in self._verdicts() if verdict.receipt_index == index]
        return ReceiptRow(
            index=index,
            receipt_id=receipt.receipt_id,
            tenant=indexable(receipt.tenant),
            request_id=indexable(receipt.request_id),
            base_cid=receipt.base_cid,
            head_cid=receipt.spec_decode.head_cid,
            adapter_cid=receipt.adapter_cid,
            profile_cid=receipt.profile_cid,
            method=receipt.spec_decode.method,
            issued_at=receipt.issued_at,
            entry=self._records[index].entry,
            outcome=outcomes[-1] if outcomes else None,
        )


_EQUAL = ("tenant", "method", "base_cid", "head_cid", "adapter_cid", "profile_cid", "request_id", "outcome")


def _indexed(value: str | None) -> str | None:
    return None if value is None else indexable(value)


def _matches(row: ReceiptRow, narrow: ReceiptFilter) -> bool:
    return (
        all(_indexed(getattr(narrow, name)) in (None, getattr(row, name)) for name in _EQUAL)
        and (narrow.issued_from is None or row.issued_at >= narrow.issued_from)
        and (narrow.issued_before is None or row.issued_at < narrow.issued_before)
        and (narrow.min_index is None or row.index >= narrow.min_index)
        and (narrow.max_index is None or row.index <= narrow.max_index)
    )


class MemoryGuard:
    """Keeps the contract of `ledger.log.continuity.Guard`, durability excepted."""

    def __init__(self) -> None:
        self._heads: dict[str, Checkpoint] = {}
        self._lock = threading.Lock()

    def read(self, origin: str) -> Checkpoint | None:
        return self._heads.get(origin)

    def compare_and_swap(self, old: Checkpoint | None, new: Checkpoint) -> None:
        with self._lock:
            if self._heads.get(new.origin) != old:
                raise StoreLocked("the guard holds another head than expected")
            self._heads[new.origin] = new

    def check_held(self) -> None:
        pass

    def close(self) -> None:
        pass

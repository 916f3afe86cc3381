"""The contract of `ledger.log.store.EntryStore`, run on SQLite, PostgreSQL and the unit tests' store in memory."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.documents.receipt import Receipt
from ledger.documents.reference_rules import JudgedOutput
from ledger.documents.signed_document import Document
from ledger.encoding.text_forms import cid, parse_timestamp
from ledger.errors import NotFound, StoreError
from ledger.keys.envelope import Envelope
from ledger.log.content_seal import packed
from ledger.log.receipt_filter import ReceiptFilter
from ledger.log.store import Batch, EntryStore, Record, entries_from
from ledger.sql.store import SqlEntryStore
from ledger.tree.entry import Entry
from ledger.tree.merkle import leaf_hash
from ledger.tree.tile import Tile, TileEdge
from tests.mutations import replace
from tests.unit.ledger.builders import (
    KEYS,
    PROFILE,
    at,
    content,
    erasure,
    expiry,
    foreign_receipt,
    halt,
    key_entry,
    receipt,
    receipt_id,
    retention,
    signed,
    verdict,
)
from tests.unit.ledger.log.memory_store import MemoryEntryStore


@pytest.fixture(params=["sqlite", "postgres", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EntryStore]:
    store = _opened(request, tmp_path)
    yield store
    store.close()
    store.close()


def _opened(request: pytest.FixtureRequest, tmp_path: Path) -> EntryStore:
    if request.param == "memory":
        return MemoryEntryStore()
    target = request.getfixturevalue("postgres_url") if request.param == "postgres" else tmp_path / "ledger.db"
    return SqlEntryStore.open(target, tmp_path / "keys.db")


def record(index: int, document: Document) -> Record:
    envelope = signed(document)
    number = int(document.request_id.removeprefix("request-")) if isinstance(document, Receipt) else -1
    entry = Entry(index, Envelope.from_bytes(envelope)).to_bytes()
    return Record(
        index=index,
        entry=entry,
        leaf=leaf_hash(entry),
        envelope_digest=hashlib.sha256(envelope).digest(),
        document=document,
        content=packed(content(number)) if number in (0, 2) else None,
    )


HEAD, ADAPTER = cid(b"head"), cid(b"adapter")
DOCUMENTS: tuple[Document, ...] = (
    receipt(0),
    receipt(1, tenant="other"),
    receipt(2, adapter_cid=ADAPTER, spec_decode=replace(receipt(2).spec_decode, method="eagle3", head_cid=HEAD)),
    verdict(1, 1, "DEVIATION"),
    halt(3),
    verdict(1, 1),
    verdict(0, 0),
    foreign_receipt(3, tenant="with\0null", adapter_cid=ADAPTER, profile_cid=PROFILE),
    key_entry("log"),
)
RECORDS = tuple(record(index, document) for index, document in enumerate(DOCUMENTS))


def fill(store: EntryStore) -> None:
    edge, tiles = TileEdge().append(leaf_hash(record.entry) for record in RECORDS[:4])
    store.commit(Batch(RECORDS[:4], tiles))
    _, tiles = edge.append(leaf_hash(record.entry) for record in RECORDS[4:])
    store.commit(Batch(RECORDS[4:], tiles))


def test_a_new_store_is_empty(store: EntryStore) -> None:
    assert store.size() == 0
    assert store.latest_checkpoint() is None
    assert not store.entries(0, 10)
    assert not store.entries_of(["receipt"])
    assert not store.receipts(ReceiptFilter(), -1, 10)
    assert not store.verdicts(None, -1, 10)
    with pytest.raises(NotFound):
        store.entry(0)
    with pytest.raises(NotFound):
        store.tile(0, 0)


def test_what_was_committed_is_read_back_to_the_byte(store: EntryStore) -> None:
    fill(store)
    assert store.size() == len(RECORDS)
    assert [store.entry(record.index) for record in RECORDS] == [record.entry for record in RECORDS]
    assert list(store.entries(0, 100)) == [record.entry for record in RECORDS]
    assert list(entries_from(store, 2, page=3)) == [record.entry for record in RECORDS[2:]]
    assert list(store.entries(3, 2)) == [record.entry for record in RECORDS[3:5]]
    assert list(store.entries(9, 5)) == list(store.entries(0, 0)) == []
    assert store.tile(0, 0) == b"".join(leaf_hash(record.entry) for record in RECORDS)
    for missing in (len(RECORDS), -1, 2**70):
        with pytest.raises((NotFound, StoreError)):
            store.entry(missing)


def test_a_batch_of_more_rows_than_one_statement_takes_is_all_there(store: EntryStore) -> None:
    records = [replace(record(index, receipt(index)), content=packed(content(index))) for index in range(150)]
    _, tiles = TileEdge().append(leaf_hash(each.entry) for each in records)
    store.commit(Batch(tuple(records), tiles))
    assert list(store.entries(0, 200)) == [each.entry for each in records]
    names = [receipt_id(index) for index in range(150)]
    assert store.indexes_of_receipts(names) == {name: index for index, name in enumerate(names)}
    assert [store.content(index) for index in range(150)] == [content(index) for index in range(150)]


def test_entries_are_found_by_kind_in_order(store: EntryStore) -> None:
    fill(store)
    assert [index for index, _ in store.entries_of(["halt", "verdict"])] == [3, 4, 5, 6]
    assert list(store.entries_of(["halt"])) == [(4, RECORDS[4].entry)]
    assert list(store.entries_of([])) == []
    assert [index for index, _ in store.entries_of(["halt", "verdict"], 5)] == [5, 6]
    assert list(store.entries_of(["halt"], 5)) == []


def test_envelopes_and_receipts_are_found_by_name(store: EntryStore) -> None:
    fill(store)
    digests = [record.envelope_digest for record in RECORDS]
    assert store.indexes_of_envelopes([*digests, bytes(32)]) == {digests[place]: place for place in (3, 4, 5, 6, 8)}
    assert store.indexes_of_receipts([receipt_id(3), receipt_id(1), receipt_id(9)]) == {
        receipt_id(1): 1,
        receipt_id(3): 7,
    }
    assert not store.indexes_of_envelopes([])
    assert not store.indexes_of_receipts([])


def test_a_key_that_has_signed_is_found(store: EntryStore) -> None:
    fill(store)
    assert [store.has_signed(KEYS[role].key_id) for role in ("receipts", "log", "publisher")] == [True, True, False]


def test_references_are_answered_by_index(store: EntryStore) -> None:
    fill(store)
    assert [store.receipt_id_at(index) for index in (0, 3, 7, 99)] == [receipt_id(0), None, receipt_id(3), None]
    assert [store.accuses(index) for index in (0, 3, 5, 99)] == [False, True, False, False]
    outputs = [store.output_at(index) for index in (0, 2, 7, 3)]
    assert outputs == [JudgedOutput(False, 2), JudgedOutput(False, 2), JudgedOutput(True, 2), None]


def test_content_is_kept_beside_its_receipt(store: EntryStore) -> None:
    fill(store)
    assert [store.content(index) for index in (0, 1, 2, 99)] == [content(0), None, content(2), None]
    assert [store.has_content(index) for index in (0, 1, 2, 99)] == [True, False, True, False]


def test_an_erasure_takes_the_content_of_its_receipt_with_it_and_nothing_else(store: EntryStore) -> None:
    fill(store)
    before = [store.entries(0, len(RECORDS)), store.receipts(ReceiptFilter(), -1, 10)]
    for index, document in enumerate((erasure(2, 2), erasure(1, 1)), len(RECORDS)):  # the second never had any
        erasing = record(index, document)
        _, tiles = TileEdge.at(index, store).append([leaf_hash(erasing.entry)])
        store.commit(Batch((erasing,), tiles))
    assert [store.content(index) for index in (0, 1, 2)] == [content(0), None, None]
    assert [store.has_content(index) for index in (0, 1, 2)] == [True, False, False]
    assert [store.erased_by(index) for index in (0, 1, 2, 99)] == [None, len(RECORDS) + 1, len(RECORDS), None]
    about = [sorted(store.about(*span)) for span in ((0, 1), (1, 3), (3, 99))]
    assert about == [[6], [3, 5, len(RECORDS), len(RECORDS) + 1], []]
    assert [store.entries(0, len(RECORDS)), store.receipts(ReceiptFilter(), -1, 10)] == before


def test_an_expiry_takes_the_contents_that_it_covers_and_no_others(store: EntryStore) -> None:
    fill(store)
    size = len(DOCUMENTS)
    store.commit(Batch((record(size, retention(30)),), (Tile(0, 0, bytes(320)),)))
    assert store.retentions() == [(size, retention(30))]
    whole = expiry(size, size, issued_before=at(100))
    assert list(store.expired(whole, 10)) == [0, 2]
    assert list(store.expired(whole, 1)) == [0]
    assert list(store.expired(replace(whole, end_index=2), 10)) == [0]
    assert list(store.expired(replace(whole, issued_before=at(1)), 10)) == [0]
    assert list(store.expired(replace(whole, tenant="other"), 10)) == []
    assert list(store.expired(replace(whole, tenant=receipt(0).tenant), 10)) == [0, 2]
    assert list(store.expired(replace(whole, except_tenants=(receipt(0).tenant,)), 10)) == []
    store.commit(Batch((record(size + 1, replace(whole, end_index=2)),), (Tile(0, 0, bytes(352)),)))
    assert [store.content(0), store.content(2)] == [None, content(2)]
    assert list(store.expired(whole, 10)) == [2]
    # Receipt 1 never had any content: nothing of it was erased.
    assert [store.erased_by(index) for index in (0, 1, 2)] == [size + 1, None, None]


def test_the_first_of_a_batch_is_what_erased_a_content(store: EntryStore) -> None:
    fill(store)
    size = len(DOCUMENTS)
    store.commit(Batch((record(size, retention(30)),), (Tile(0, 0, bytes(320)),)))
    both = (record(size + 1, erasure(2, 2)), record(size + 2, expiry(size, size, issued_before=at(100))))
    store.commit(Batch(both, (Tile(0, 0, bytes(384)),)))
    assert [store.erased_by(index) for index in (0, 1, 2)] == [size + 2, None, size + 1]


FILTERED = [
    (ReceiptFilter(), [0, 1, 2, 7]),
    (ReceiptFilter(tenant="acme"), [0, 2]),
    (ReceiptFilter(tenant="unknown"), []),
    (ReceiptFilter(method="lookahead", tenant="other"), [1]),
    (ReceiptFilter(method="off"), []),
    (ReceiptFilter(base_cid=receipt().base_cid, min_index=1, max_index=2), [1, 2]),
    (ReceiptFilter(request_id="request-2"), [2]),
    (ReceiptFilter(head_cid=HEAD), [2]),
    (ReceiptFilter(head_cid=ADAPTER), []),
    (ReceiptFilter(adapter_cid=ADAPTER), [2, 7]),
    (ReceiptFilter(profile_cid=PROFILE), [0, 1, 2, 7]),
    (ReceiptFilter(profile_cid=HEAD), []),
    (ReceiptFilter(outcome="EXACT"), [0, 1]),
    (ReceiptFilter(outcome="DEVIATION"), []),  # entry 1 had that outcome once, and has a newer verdict
    (ReceiptFilter(outcome="EXACT", tenant="other"), [1]),
    (ReceiptFilter(start_time=parse_timestamp(at(1))), [1, 2, 7]),
    (ReceiptFilter(end_time=parse_timestamp(at(1))), [0]),
    (ReceiptFilter(start_time=parse_timestamp(at(1)), end_time=parse_timestamp(at(3))), [1, 2]),
    (ReceiptFilter(tenant="with\0null"), [7]),
    (ReceiptFilter(commitment=receipt(2).prompt.commitment), [2]),
    (ReceiptFilter(commitment=receipt(3).output.commitment), [7]),
    (ReceiptFilter(commitment=receipt(1).output.commitment, tenant="acme"), []),
    (ReceiptFilter(commitment="sha256:" + "0" * 64), []),
]
"""Filters, and the indexes of the receipts that they leave."""


@pytest.mark.parametrize("segment", [2048, 2])
def test_receipts_are_found_in_every_segment_of_an_index(
    store: EntryStore, monkeypatch: pytest.MonkeyPatch, segment: int
) -> None:
    for module in ("ledger.log.store", "ledger.sql.queries"):
        monkeypatch.setattr(f"{module}.SEGMENT", segment)
    fill(store)
    for narrow, indexes in FILTERED:
        assert [row.index for row in store.receipts(narrow, -1, 10)] == indexes, narrow
    both = ReceiptFilter(request_id="request-2", commitment=receipt(2).prompt.commitment)
    assert [row.index for row in store.receipts(both, -1, 10)] == [2]
    assert [row.index for row in store.receipts(both, 1, 10)] == [2]
    assert list(store.receipts(both, 2, 10)) == []
    for bound in (replace(both, max_index=1), replace(both, min_index=3)):
        assert list(store.receipts(bound, -1, 10)) == []


def test_pages_neither_repeat_nor_lose_a_receipt(store: EntryStore) -> None:
    fill(store)
    after, pages = -1, []
    while page := store.receipts(ReceiptFilter(), after, 3):
        pages.append([row.index for row in page])
        after = page[-1].index
    assert pages == [[0, 1, 2], [7]]


def test_a_listed_receipt_carries_its_columns_its_entry_and_its_latest_outcome(store: EntryStore) -> None:
    fill(store)
    rows = {row.index: row for row in store.receipts(ReceiptFilter(), -1, 10)}
    assert (rows[1].receipt_id, rows[1].tenant, rows[1].request_id) == (receipt_id(1), "other", "request-1")
    assert (rows[1].method, rows[1].base_cid, rows[1].issued_at) == (
        "lookahead",
        receipt(1).base_cid,
        receipt(1).issued_at,
    )
    assert (rows[1].head_cid, rows[1].adapter_cid, rows[1].profile_cid) == (None, None, PROFILE)
    assert (rows[2].head_cid, rows[2].adapter_cid) == (HEAD, ADAPTER)
    assert rows[1].entry == RECORDS[1].entry
    assert {index: row.outcome for index, row in rows.items()} == {0: "EXACT", 1: "EXACT", 2: None, 7: None}


def test_verdicts_are_listed_for_one_receipt_or_for_all(store: EntryStore) -> None:
    fill(store)
    assert [row.index for row in store.verdicts(None, -1, 10)] == [3, 5, 6]
    assert [row.index for row in store.verdicts(None, 3, 1)] == [5]
    assert [row.index for row in store.verdicts(None, 7, 2, newest_first=True)] == [6, 5]
    assert [row.index for row in store.verdicts(None, 5, 2, newest_first=True)] == [3]
    assert [row.index for row in store.verdicts(None, -1, 10, "EXACT")] == [5, 6]
    assert [row.index for row in store.verdicts(receipt_id(1), -1, 10, outcome="EXACT")] == [5]
    rows = store.verdicts(receipt_id(1), -1, 10)
    assert [(row.index, row.receipt_index, row.outcome) for row in rows] == [(3, 1, "DEVIATION"), (5, 1, "EXACT")]
    assert rows[0].entry == RECORDS[3].entry


MISFITS = {
    "a gap": (record(5, receipt(10)),),
    "a place that is taken": (record(3, receipt(10)),),
    "a gap inside": (record(4, receipt(10)), record(6, receipt(11))),
    "one place twice": (record(4, receipt(10)), record(4, receipt(11))),
    "a receipt id": (record(4, receipt(10)), record(5, receipt(0, tenant="same id"))),
    "an envelope": (record(4, receipt(10)), record(5, receipt(0))),
    "an envelope of another kind": (record(4, receipt(10)), record(5, verdict(1, 1, "DEVIATION"))),
    "itself": (record(4, receipt(10)), record(5, receipt(10))),
}
"""Records that do not follow the first four."""


def test_a_batch_that_does_not_fit_leaves_nothing_behind(store: EntryStore) -> None:
    store.commit(Batch(RECORDS[:4], (Tile(0, 0, bytes(128)),)))
    for name, records in MISFITS.items():
        with pytest.raises(StoreError):
            store.commit(Batch(records, (Tile(0, 0, bytes(160)),)))
        assert store.size() == 4, name
        assert store.tile(0, 0) == bytes(128), name
        assert store.indexes_of_receipts([receipt_id(10)]) == {}, name
        assert [row.index for row in store.receipts(ReceiptFilter(), -1, 10)] == [0, 1, 2], name


def test_a_probe_changes_nothing(store: EntryStore) -> None:
    fill(store)
    for _ in range(2):
        store.probe()
    assert list(store.entries(0, 100)) == [record.entry for record in RECORDS]
    store.commit(Batch((record(9, receipt(10)),), (Tile(0, 0, bytes(320)),)))
    assert store.size() == 10


def test_the_checkpoint_with_the_greatest_size_is_the_latest(store: EntryStore) -> None:
    for size in (0, 300, 5):
        store.record_checkpoint(size, b"checkpoint of %d" % size)
    assert store.latest_checkpoint() == b"checkpoint of 300"


def test_a_recorded_checkpoint_cannot_be_replaced(store: EntryStore) -> None:
    store.record_checkpoint(5, b"one")
    store.record_checkpoint(5, b"one")
    with pytest.raises(StoreError):
        store.record_checkpoint(5, b"two")
    assert store.latest_checkpoint() == b"one"

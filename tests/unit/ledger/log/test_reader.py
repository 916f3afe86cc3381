"""A reader shows what is signed, and nothing else."""

import threading

import pytest

from ledger.errors import NotFound
from ledger.log.reader import LedgerReader
from ledger.log.receipt_filter import ReceiptFilter
from ledger.log.sequencer import Sequencer
from tests.unit.ledger.builders import content, receipt_id, signed, signed_receipt, verdict
from tests.unit.ledger.log.faulty_store import FaultyStore, Gate, open_sequencer
from tests.unit.ledger.log.memory_store import MemoryEntryStore


def test_a_reader_sees_nothing_that_is_not_signed_yet(store: MemoryEntryStore) -> None:
    gate = Gate()

    def strike(step: str) -> None:
        if step == "before checkpoint" and store.size() == 2:
            gate.reached.release()
            gate.open.wait()

    sequencer = open_sequencer(FaultyStore(store, strike))
    reader = LedgerReader(store, sequencer.board)
    sequencer.append(signed_receipt(0)).result()
    gate.open.clear()
    waiting = sequencer.append(signed_receipt(1))
    gate.reached.acquire()
    assert store.size() == 2
    assert reader.head().size == 1
    assert len(reader.entries(0, 10)) == len(reader.receipts()) == 1
    for hidden in (lambda: reader.entry(1), lambda: reader.receipt(receipt_id(1)), lambda: reader.inclusion_proof(1)):
        with pytest.raises(NotFound):
            hidden()
    gate.open.set()
    waiting.result()
    assert reader.receipt(receipt_id(1)).index == 1
    sequencer.close()


def test_a_reader_finds_receipts_with_their_content_and_verdicts(store: MemoryEntryStore, sequencer: Sequencer) -> None:
    reader = LedgerReader(store, sequencer.board)
    for number in range(4):
        sequencer.append(signed_receipt(number, tenant="even" if number % 2 == 0 else "odd"), content(number)).result()
    for document in (verdict(2, 2, "UNREPLAYABLE"), verdict(2, 2)):
        sequencer.append(signed(document)).result()
    found = reader.receipt(receipt_id(2))
    assert (found.index, found.content) == (2, content(2))
    assert [(row.index, row.outcome) for row in found.verdicts] == [(4, "UNREPLAYABLE"), (5, "EXACT")]
    assert [row.index for row in reader.receipts(ReceiptFilter(tenant="odd"))] == [1, 3]
    assert [row.index for row in reader.receipts(after=0, limit=2)] == [1, 2]
    assert {row.index: row.outcome for row in reader.receipts()} == {0: None, 1: None, 2: "EXACT", 3: None}
    assert [row.index for row in reader.verdicts(after=4)] == [5]
    assert [row.index for row in reader.newest_verdicts()] == [5, 4]
    assert [row.index for row in reader.newest_verdicts(before=5)] == [4]
    with pytest.raises(NotFound, match=receipt_id(9)):
        reader.receipt(receipt_id(9))


def test_proofs_are_served_for_published_trees_only(store: MemoryEntryStore, sequencer: Sequencer) -> None:
    reader = LedgerReader(store, sequencer.board)
    for number in range(5):
        sequencer.append(signed_receipt(number)).result()
    assert reader.inclusion_proof(2, 3) == reader.inclusion_proof(2, 3)
    for index, size in ((5, 5), (0, 6), (-1, 3), (3, 3)):
        with pytest.raises(NotFound):
            reader.inclusion_proof(index, size)
    for old, new in ((3, 2), (0, 6), (-1, 2)):
        with pytest.raises(NotFound):
            reader.consistency_proof(old, new)


def test_waiting_for_growth_wakes_up_when_the_log_grows(store: MemoryEntryStore, sequencer: Sequencer) -> None:
    reader = LedgerReader(store, sequencer.board)
    assert reader.wait_beyond(0, timeout=0).size == 0
    woken: list[int] = []
    waiter = threading.Thread(target=lambda: woken.append(reader.wait_beyond(0).size))
    waiter.start()
    sequencer.append(signed_receipt(0)).result()
    waiter.join()
    assert woken == [1]

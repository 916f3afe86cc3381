"""Faults under the sequencer: nothing acknowledged moves, and it goes on, or stops, as the fault demands."""

import threading
from typing import Any

import pytest

from ledger.audit.log_verification import verify_appended
from ledger.errors import ChainError, NotWritten, SignerUnavailable, Stopped, StoreError, StoreLocked
from ledger.log.reader import LedgerReader
from ledger.log.sequencer import Sequencer
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.merkle import leaf_hash, verify_consistency, verify_inclusion
from tests.unit.ledger.builders import KEYS, ORIGIN, TRUSTED, receipt, signed, signed_receipt
from tests.unit.ledger.log.faulty_store import (
    BEFORE_COMMIT,
    FAULTS,
    PROBE,
    FaultyGuard,
    FaultyStore,
    Gate,
    Once,
    check_whole_log,
    hold,
    open_sequencer,
)
from tests.unit.ledger.log.memory_store import MemoryEntryStore, MemoryGuard


@pytest.mark.parametrize("fault", FAULTS)
def test_after_a_fault_the_same_appends_succeed_and_nothing_moves(
    store: MemoryEntryStore, guard: MemoryGuard, fault: str
) -> None:
    strike = Once()
    sequencer = open_sequencer(FaultyStore(store, strike), guard=FaultyGuard(guard, strike))
    before = [sequencer.append(signed_receipt(number)).result() for number in range(3)]
    strike.armed = fault
    with pytest.raises(StoreError, match=fault):
        sequencer.append(signed_receipt(3)).result()
    after = [sequencer.append(signed_receipt(number)).result() for number in range(6)]
    assert [answer.index for answer in after] == list(range(6))
    assert [answer.entry for answer in after[:3]] == [answer.entry for answer in before]
    sequencer.close()
    check_whole_log(store)
    assert guard.read(ORIGIN) == sequencer.board.latest().checkpoint


@pytest.mark.parametrize("fault", FAULTS)
def test_after_a_fault_and_a_restart_the_log_is_whole(store: MemoryEntryStore, guard: MemoryGuard, fault: str) -> None:
    strike = Once()
    sequencer = open_sequencer(FaultyStore(store, strike), guard=FaultyGuard(guard, strike))
    acknowledged = [sequencer.append(signed_receipt(number)).result() for number in range(3)]
    strike.armed = fault
    with pytest.raises(StoreError):
        sequencer.append(signed_receipt(3)).result()
    sequencer.close()
    reopened = open_sequencer(store, guard=guard)
    head = reopened.board.latest()
    assert [reopened.append(signed_receipt(number)).result().index for number in range(4)] == [0, 1, 2, 3]
    reader = LedgerReader(store, reopened.board)
    for answer in acknowledged:  # what was acknowledged before the fault is provable under the heads after it
        proof = reader.inclusion_proof(answer.index)
        root = reopened.board.latest().checkpoint.root
        verify_inclusion(leaf_hash(answer.entry), answer.index, reopened.board.latest().size, proof, root)
    proof = reader.consistency_proof(head.size)
    verify_consistency(head.size, 4, proof, head.checkpoint.root, reopened.board.latest().checkpoint.root)
    reopened.close()
    check_whole_log(store)


def test_a_database_that_is_away_fails_its_callers_and_the_sequencer_goes_on_once_it_is_back(
    store: MemoryEntryStore, guard: MemoryGuard
) -> None:
    def away(step: str) -> None:
        if gone.is_set():
            raise StoreError(f"no space left {step}")

    gone = threading.Event()
    sequencer = open_sequencer(FaultyStore(store, away), guard=FaultyGuard(guard, away))
    sequencer.append(signed_receipt(0)).result()
    gone.set()
    for number in (1, 2, 1):
        with pytest.raises(StoreError):
            sequencer.append(signed_receipt(number)).result()
    assert sequencer.failure is None
    gone.clear()
    assert [sequencer.append(signed_receipt(number)).result().index for number in range(4)] == [0, 1, 2, 3]
    sequencer.close()
    check_whole_log(store)


def test_a_full_disk_is_told_once_and_over_once_a_probe_succeeds(
    store: MemoryEntryStore, guard: MemoryGuard, caplog: pytest.LogCaptureFixture
) -> None:
    full, in_vain, probed = threading.Event(), threading.Semaphore(0), threading.Event()

    def strike(step: str) -> None:
        if full.is_set() and step in (BEFORE_COMMIT, PROBE):
            if step == PROBE:
                in_vain.release()
            raise StoreError(f"database or disk is full {step}")
        if step == PROBE:
            probed.set()

    sequencer = open_sequencer(FaultyStore(store, strike), guard=guard, probe_seconds=0.01)
    sequencer.append(signed_receipt(0)).result()
    assert sequencer.takes_entries
    full.set()
    for number in (1, 2, 1):
        with pytest.raises(NotWritten):
            sequencer.append(signed_receipt(number)).result()
    for _ in range(3):
        assert in_vain.acquire(timeout=60)
        assert not sequencer.takes_entries
    full.clear()
    assert probed.wait(timeout=60)
    sequencer.close()
    assert sequencer.takes_entries  # without an entry
    assert [(line.levelname, line.exc_info) for line in caplog.records] == [("ERROR", None), ("WARNING", None)]


def test_a_batch_that_writes_nothing_does_not_end_a_failure(store: MemoryEntryStore, guard: MemoryGuard) -> None:
    def strike(step: str) -> None:
        if full.is_set() and step in (BEFORE_COMMIT, PROBE):
            raise StoreError("database or disk is full")

    full = threading.Event()
    sequencer = open_sequencer(FaultyStore(store, strike), guard=guard, probe_seconds=1000.0)
    sequencer.append(signed_receipt(0)).result()
    full.set()
    with pytest.raises(NotWritten):
        sequencer.append(signed_receipt(1)).result()
    assert sequencer.append(signed_receipt(0)).result().index == 0
    assert not sequencer.takes_entries
    full.clear()
    sequencer.append(signed_receipt(1)).result()
    assert sequencer.takes_entries
    sequencer.close()


def test_a_sequencer_whose_log_another_has_taken_over_stops_and_leaves_no_caller_waiting(
    store: MemoryEntryStore, guard: MemoryGuard
) -> None:
    gate = Gate()
    sequencer = open_sequencer(FaultyStore(store, gate), guard=guard)
    sequencer.append(signed_receipt(0)).result()
    waiting = hold(sequencer, gate)
    futures = [sequencer.append(signed_receipt(number)) for number in range(1, 5)]
    guard.compare_and_swap(guard.read(ORIGIN), Checkpoint(ORIGIN, 7, bytes(32)))
    gate.open.set()
    with pytest.raises(StoreLocked, match="guard"):
        waiting.result()
    for future in futures:
        with pytest.raises(Stopped, match="guard"):
            future.result()
    with pytest.raises(Stopped, match="guard"):
        sequencer.append(signed_receipt(9))
    assert isinstance(sequencer.failure, StoreLocked)
    assert sequencer.board.latest().size == 1
    sequencer.close()


def test_a_store_that_gives_back_other_bytes_stops_the_sequencer_unsigned(store: MemoryEntryStore) -> None:
    class Forgetful(FaultyStore):
        def entries(self, start: int, limit: int) -> Any:
            return [data.replace(b"receipt", b"recepit") for data in store.entries(start, limit)]

    sequencer = open_sequencer(Forgetful(store, Once()))
    with pytest.raises(ChainError):
        sequencer.append(signed_receipt(0)).result()
    with pytest.raises(Stopped):
        sequencer.append(signed_receipt(1))
    assert sequencer.board.latest().size == 0
    sequencer.close()


def test_an_unforeseen_error_reaches_the_caller_as_a_ledger_error(store: MemoryEntryStore) -> None:
    def bug(step: str) -> None:
        if step == BEFORE_COMMIT and store.size() == 1:
            raise ZeroDivisionError

    sequencer = open_sequencer(FaultyStore(store, bug))
    sequencer.append(signed_receipt(0)).result()
    with pytest.raises(StoreError, match="ZeroDivisionError"):
        sequencer.append(signed_receipt(1)).result()
    sequencer.close()


class MoodySigner:
    """The log's key, in a device that is away while `away`."""

    role, public, key_id, publish = "log", KEYS["log"].public, KEYS["log"].key_id, KEYS["log"].publish

    def __init__(self) -> None:
        self.away = False

    def sign(self, message: bytes) -> bytes:
        if self.away:
            raise SignerUnavailable("the device is away")
        return KEYS["log"].sign(message)


def test_a_signing_device_that_comes_back_finds_the_entries_that_waited_for_it() -> None:
    signer, store = MoodySigner(), MemoryEntryStore()
    sequencer = Sequencer(store, signer, TRUSTED, ORIGIN, guard=MemoryGuard())
    try:
        assert sequencer.append(signed(receipt(0))).result().index == 0
        signer.away = True
        with pytest.raises(NotWritten):
            sequencer.append(signed(receipt(1))).result()
        assert (sequencer.takes_entries, sequencer.failure) == (False, None)
        signer.away = False
        answer = sequencer.append(signed(receipt(1))).result()  # the same index, now under a signed head
        verify_appended(
            signed(receipt(1)), answer.entry, answer.inclusion_proof, answer.checkpoint, TRUSTED.keys("log")
        )
        assert (answer.index, store.size()) == (1, 2)
        assert sequencer.append(signed(receipt(2))).result().index == 2
        assert sequencer.takes_entries
    finally:
        sequencer.close()

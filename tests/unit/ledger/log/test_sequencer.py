import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from ledger.audit.log_verification import verify_appended, verify_log
from ledger.documents.halt import Scope
from ledger.documents.signed_document import sign_document
from ledger.encoding.timestamp import timestamp
from ledger.errors import (
    Backpressure,
    ChainError,
    Conflict,
    FormatError,
    NotFound,
    NotWritten,
    SignatureError,
    SignerUnavailable,
    Stopped,
    StoreError,
    StoreLocked,
)
from ledger.keys.envelope import Envelope
from ledger.log.admission import admit
from ledger.log.reader import LedgerReader
from ledger.log.receipt_filter import ReceiptFilter
from ledger.log.recovery import recover
from ledger.log.sequencer import Sequencer
from ledger.log.store import EntryStore
from ledger.log.writer import Appended
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.entry import MAX_PAYLOAD_BYTES, Entry
from ledger.tree.merkle import leaf_hash, verify_consistency, verify_inclusion
from tests.unit.ledger.builders import (
    BASE,
    KEYS,
    ORIGIN,
    STRANGER,
    TRUSTED,
    at,
    content,
    erasure,
    halt,
    key_entry,
    receipt,
    receipt_id,
    resume,
    signed,
    signed_receipt,
    verdict,
)
from tests.unit.ledger.log.faulty_store import BEFORE_COMMIT, FAULTS, PROBE, FaultyGuard, FaultyStore, Gate, Once
from tests.unit.ledger.log.memory_guard import MemoryGuard
from tests.unit.ledger.log.memory_store import MemoryEntryStore

LOG_KEYS = (KEYS["log"].public,)


def open_sequencer(store: object, **options: Any) -> Sequencer:
    return Sequencer(cast(EntryStore, store), KEYS["log"], TRUSTED, ORIGIN, **options)


@pytest.fixture
def store() -> MemoryEntryStore:
    return MemoryEntryStore()


@pytest.fixture
def guard() -> MemoryGuard:
    return MemoryGuard()


@pytest.fixture
def sequencer(store: MemoryEntryStore) -> Iterator[Sequencer]:
    sequencer = open_sequencer(store)
    yield sequencer
    sequencer.close()


def check_whole_log(store: EntryStore) -> None:
    report = verify_log(store.entries(0, 10_000), store.latest_checkpoint(), TRUSTED, ORIGIN)
    assert report.ok, report.problem


def test_an_append_is_answered_with_everything_that_proves_it(store: MemoryEntryStore, sequencer: Sequencer) -> None:
    answers = [sequencer.append(signed_receipt(number), content(number)).result() for number in range(20)]
    assert [answer.index for answer in answers] == list(range(20))
    for number, answer in enumerate(answers):
        entry = verify_appended(
            signed_receipt(number), answer.entry, answer.inclusion_proof, answer.checkpoint, LOG_KEYS, ORIGIN
        )
        assert (entry.index, answer.halt_epoch) == (number, 0)
        assert answer.tree_size > number
    assert Entry.from_bytes(answers[1].entry).previous == answers[0].entry_hash
    check_whole_log(store)


def test_a_new_ledger_starts_with_a_signed_checkpoint_over_nothing(
    store: MemoryEntryStore, sequencer: Sequencer
) -> None:
    assert sequencer.board.latest().size == 0
    check_whole_log(store)


def test_the_same_envelope_again_keeps_its_index(store: MemoryEntryStore, sequencer: Sequencer) -> None:
    first = sequencer.append(signed_receipt(0), content(0)).result()
    sequencer.append(signed_receipt(1)).result()
    again = sequencer.append(signed_receipt(0)).result()
    assert (again.index, again.entry, again.tree_size) == (0, first.entry, 2)
    verify_appended(signed_receipt(0), again.entry, again.inclusion_proof, again.checkpoint, LOG_KEYS)
    assert store.content(0) == content(0)
    assert store.size() == 2


def test_another_receipt_under_a_taken_id_is_a_conflict(sequencer: Sequencer) -> None:
    sequencer.append(signed_receipt(0)).result()
    with pytest.raises(Conflict, match=f"entry 0 .* {receipt_id(0)}"):
        sequencer.append(signed_receipt(0, tenant="other")).result()


def test_duplicates_inside_one_batch_are_told_apart(store: MemoryEntryStore) -> None:
    gate = Gate()
    sequencer = open_sequencer(FaultyStore(store, gate))
    waiting = _hold(sequencer, gate)
    futures = [sequencer.append(data) for data in (signed_receipt(1), signed_receipt(1), signed_receipt(1, tenant="x"))]
    gate.open.set()
    assert waiting.result().index == 0
    assert [future.result().index for future in futures[:2]] == [1, 1]
    with pytest.raises(Conflict):
        futures[2].result()
    sequencer.close()
    check_whole_log(store)


def _hold(sequencer: Sequencer, gate: Gate) -> Future[Appended]:
    """Append one receipt and return once the writer stands at the closed gate with it."""
    while gate.reached.acquire(blocking=False):  # commits of before
        pass
    gate.open.clear()
    waiting = sequencer.append(signed_receipt(900))
    gate.reached.acquire()
    return waiting


def test_whatever_has_queued_up_goes_into_one_commit(store: MemoryEntryStore) -> None:
    gate = Gate()
    sequencer = open_sequencer(FaultyStore(store, gate), batch_size=64)
    waiting = _hold(sequencer, gate)
    futures = [sequencer.append(signed_receipt(number)) for number in range(100)]
    gate.open.set()
    assert [future.result().index for future in (waiting, *futures)] == list(range(101))
    assert gate.commits == 3  # 1, 64 and 36
    sequencer.close()
    check_whole_log(store)


def test_a_full_queue_pushes_back_and_says_for_how_long(store: MemoryEntryStore) -> None:
    gate, times = Gate(), iter(float(second) for second in range(100))
    sequencer = open_sequencer(FaultyStore(store, gate), queue_size=3, batch_size=2, clock=lambda: next(times))
    sequencer.append(signed_receipt(0)).result()
    waiting = _hold(sequencer, gate)
    futures = [sequencer.append(signed_receipt(number)) for number in (1, 2, 3)]
    with pytest.raises(Backpressure) as caught:
        sequencer.append(signed_receipt(4))
    assert caught.value.retry_after == 2.0  # two batches wait, and the last one took a second on this clock
    gate.open.set()
    assert {future.result().index for future in (waiting, *futures)} == {1, 2, 3, 4}
    assert sequencer.append(signed_receipt(4)).result().index == 5
    sequencer.close()


def test_a_clock_that_runs_backwards_changes_nothing(store: MemoryEntryStore) -> None:
    gate, times = Gate(), iter(range(10_000, 0, -7))
    sequencer = open_sequencer(FaultyStore(store, gate), queue_size=2, clock=lambda: float(next(times)))
    for number in (5, 3, 1):  # receipts that were issued later come first
        sequencer.append(signed_receipt(number)).result()
    waiting = _hold(sequencer, gate)
    futures = [sequencer.append(signed_receipt(number)) for number in (0, 2)]
    with pytest.raises(Backpressure) as caught:
        sequencer.append(signed_receipt(4))
    assert 0 < caught.value.retry_after < 1
    gate.open.set()
    assert [future.result().index for future in (waiting, *futures)] == [3, 4, 5]
    sequencer.close()
    check_whole_log(store)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", FormatError),
        (b"{}", FormatError),
        (b" " * 70_000, FormatError),
        (sign_document(receipt(), STRANGER).to_bytes(), SignatureError),
        (signed_receipt()[:-30] + b'A=="}]}', FormatError),
    ],
)
def test_what_is_not_a_signed_document_never_reaches_the_queue(
    store: MemoryEntryStore, sequencer: Sequencer, data: bytes, error: type[Exception]
) -> None:
    with pytest.raises(error):
        sequencer.append(data)
    assert store.size() == 0


def test_content_must_be_what_the_receipt_commits_to(store: MemoryEntryStore, sequencer: Sequencer) -> None:
    kept = content(0)
    for wrong, field in (
        (replace(kept, prompt_token_ids=(1, 2, 4)), "content.prompt_token_ids"),
        (replace(kept, prompt_token_ids=(1, 2)), "content.prompt_token_ids"),
        (replace(kept, output_salt=bytes(32)), "content.output_token_ids"),
        (replace(kept, output_salt=b"short"), "salt"),
    ):
        with pytest.raises(FormatError) as caught:
            sequencer.append(signed_receipt(0), wrong)
        assert caught.value.field == field
    with pytest.raises(FormatError, match="receipt"):
        sequencer.append(signed(key_entry("log")), kept)
    assert store.size() == 0


def test_a_document_must_refer_to_what_the_log_holds(store: MemoryEntryStore, sequencer: Sequencer) -> None:
    def append(*documents: Any) -> list[int]:
        return [sequencer.append(signed(document)).result().index for document in documents]

    append(receipt(0), verdict(0, 0), verdict(0, 0, "DEVIATION"), verdict(0, 0, "UNREPLAYABLE"))
    for document, field in (
        (receipt(1, halt_epoch=1), "halt_epoch"),
        (verdict(0, 1), "receipt_index"),
        (verdict(7, 0), "receipt_index"),
        (halt(0), "verdict_index"),
        (halt(1), "verdict_index"),
        (halt(9), "verdict_index"),
        (resume(2), "halt_index"),
    ):
        with pytest.raises(FormatError) as caught:
            append(document)
        assert caught.value.field == field
    assert append(halt(2), receipt(1, halt_epoch=1)) == [4, 5]
    with pytest.raises(FormatError, match="halt_index"):
        append(resume(4, Scope(BASE, "eagle3")))
    with pytest.raises(FormatError, match="before the halt that it lifts"):
        append(replace(resume(4), issued_at=at(199)))
    with pytest.raises(FormatError, match="300 s ahead of the ledger's"):
        append(replace(resume(4), issued_at=timestamp(datetime.now(UTC) + timedelta(seconds=400))))
    assert append(resume(4)) == [6]
    with pytest.raises(FormatError, match="halt_index"):
        append(replace(resume(4), reason="again"))
    check_whole_log(store)


def test_of_two_erasures_in_one_batch_one_is_taken(store: MemoryEntryStore) -> None:
    writer = recover(cast(EntryStore, store), KEYS["log"], TRUSTED, ORIGIN)
    writer.write([admit(signed_receipt(0), None, TRUSTED)])
    documents = (erasure(0, 0), erasure(0, 0, reason="again"), erasure(0, 0))
    answers = writer.write([admit(signed(document), None, TRUSTED) for document in documents])
    assert [answer.index if isinstance(answer, Appended) else type(answer) for answer in answers] == [1, Conflict, 1]


def test_a_halt_raises_the_epoch_that_answers_carry(sequencer: Sequencer) -> None:
    for document in (receipt(0), verdict(0, 0, "DEVIATION")):
        assert sequencer.append(signed(document)).result().halt_epoch == 0
    assert sequencer.append(signed(halt(1))).result().halt_epoch == 1
    assert sequencer.board.latest().halts.is_halted(BASE, "lookahead")
    assert sequencer.append(signed(resume(2))).result().halt_epoch == 1
    assert not sequencer.board.latest().halts.is_halted(BASE, "lookahead")


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
        with pytest.raises(StoreError, match="no space left"):
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
        with pytest.raises(NotWritten, match="disk is full"):
            sequencer.append(signed_receipt(number)).result()
    for _ in range(3):
        assert in_vain.acquire(timeout=60)
        assert not sequencer.takes_entries
    full.clear()
    assert probed.wait(timeout=60)
    sequencer.close()
    assert sequencer.takes_entries  # without anybody's entry
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


def test_a_sequencer_whose_log_another_has_taken_over_stops_and_nobody_waits_for_ever(
    store: MemoryEntryStore, guard: MemoryGuard
) -> None:
    gate = Gate()
    sequencer = open_sequencer(FaultyStore(store, gate), guard=guard)
    sequencer.append(signed_receipt(0)).result()
    waiting = _hold(sequencer, gate)
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
    with pytest.raises(ChainError, match="other bytes than were written"):
        sequencer.append(signed_receipt(0)).result()
    with pytest.raises(Stopped):
        sequencer.append(signed_receipt(1))
    assert sequencer.board.latest().size == 0
    sequencer.close()


def test_an_error_that_nobody_foresaw_reaches_the_caller_as_a_ledger_error(store: MemoryEntryStore) -> None:
    def bug(step: str) -> None:
        if step == BEFORE_COMMIT and store.size() == 1:
            raise ZeroDivisionError

    sequencer = open_sequencer(FaultyStore(store, bug))
    sequencer.append(signed_receipt(0)).result()
    with pytest.raises(StoreError, match="ZeroDivisionError"):
        sequencer.append(signed_receipt(1)).result()
    sequencer.close()


def test_closing_writes_what_is_queued_and_takes_no_more(store: MemoryEntryStore) -> None:
    gate = Gate()
    sequencer = open_sequencer(FaultyStore(store, gate))
    waiting = _hold(sequencer, gate)
    futures = [sequencer.append(signed_receipt(number)) for number in range(5)]
    closer = threading.Thread(target=sequencer.close)
    closer.start()
    gate.open.set()
    closer.join()
    assert [future.result().index for future in (waiting, *futures)] == list(range(6))
    with pytest.raises(Stopped, match="shutting down"):
        sequencer.append(signed_receipt(7))
    sequencer.close()


def test_many_callers_at_once_each_get_their_own_index(store: MemoryEntryStore, sequencer: Sequencer) -> None:
    found: dict[int, int] = {}

    def call(number: int) -> None:
        found[number] = sequencer.append(signed_receipt(number)).result().index

    threads = [threading.Thread(target=call, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found.values()) == list(range(40))
    for number, index in found.items():
        assert Entry.from_bytes(store.entry(index)).envelope == Envelope.from_bytes(signed_receipt(number))


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


def test_a_document_of_the_greatest_size_fits_and_a_greater_one_is_refused(sequencer: Sequencer) -> None:
    room = MAX_PAYLOAD_BYTES - len(Envelope.from_bytes(signed_receipt(0)).payload)
    big = receipt(0)
    fits = replace(big, sampling=replace(big.sampling, stop=("x" * (room // 2), "y" * (room // 2 - 10))))
    assert sequencer.append(signed(fits)).result().index == 0
    huge = replace(big, sampling=replace(big.sampling, stop=("x" * 60_000,)))
    with pytest.raises(FormatError, match="envelope"):
        sequencer.append(signed(huge))


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
    sequencer = Sequencer(store, signer, TRUSTED, ORIGIN)
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

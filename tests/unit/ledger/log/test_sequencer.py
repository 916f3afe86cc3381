"""Appends: their answers and refusals; a reader sees signed entries alone."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from ledger.audit.log_verification import verify_appended, verify_log
from ledger.documents.audit import Deviation
from ledger.documents.halt import Scope
from ledger.documents.key_entry import KeyEntry
from ledger.documents.signed_document import sign_document, sign_rotation
from ledger.encoding.text_forms import timestamp
from ledger.errors import (
    Backpressure,
    ClockAhead,
    Conflict,
    FormatError,
    LedgerError,
    NotFound,
    SignatureError,
    Stopped,
)
from ledger.keys.ed25519 import PublicKey
from ledger.keys.envelope import Envelope
from ledger.keys.signer import Signer
from ledger.keys.trusted_keys import FixedThreshold, TrustedKeys
from ledger.log.admission import admit
from ledger.log.reader import LedgerReader
from ledger.log.receipt_filter import ReceiptFilter
from ledger.log.recovery import recover
from ledger.log.sequencer import Sequencer
from ledger.log.store import EntryStore
from ledger.log.writer import Appended
from ledger.tree.entry import Entry
from ledger.tree.merkle import leaf_hash, verify_consistency, verify_inclusion
from tests.keys import seeded_key
from tests.mutations import replace
from tests.unit.ledger.builders import (
    BASE,
    KEYS,
    ORIGIN,
    STRANGER,
    TRUSTED,
    at,
    content,
    erasure,
    foreign_receipt,
    halt,
    key_entry,
    receipt,
    receipt_id,
    resume,
    signed,
    signed_receipt,
    verdict,
)
from tests.unit.ledger.log.faulty_store import FaultyStore, Gate, check_whole_log, hold, open_sequencer
from tests.unit.ledger.log.memory_store import MemoryEntryStore, MemoryGuard

LOG_KEYS = (KEYS["log"].public,)


def test_an_append_is_answered_with_everything_that_proves_it(store: MemoryEntryStore, sequencer: Sequencer) -> None:
    answers = [sequencer.append(signed_receipt(number), content(number)).result() for number in range(20)]
    assert [answer.index for answer in answers] == list(range(20))
    for number, answer in enumerate(answers):
        entry = verify_appended(
            signed_receipt(number), answer.entry, answer.inclusion_proof, answer.checkpoint, LOG_KEYS, ORIGIN
        )
        assert (entry.index, answer.halt_epoch) == (number, 0)
        assert answer.tree_size > number
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
    waiting = hold(sequencer, gate)
    futures = [sequencer.append(data) for data in (signed_receipt(1), signed_receipt(1), signed_receipt(1, tenant="x"))]
    gate.open.set()
    assert waiting.result().index == 0
    assert [future.result().index for future in futures[:2]] == [1, 1]
    with pytest.raises(Conflict):
        futures[2].result()
    sequencer.close()
    check_whole_log(store)


def test_whatever_has_queued_up_goes_into_one_commit(store: MemoryEntryStore) -> None:
    gate = Gate()
    sequencer = open_sequencer(FaultyStore(store, gate), batch_size=64)
    waiting = hold(sequencer, gate)
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
    waiting = hold(sequencer, gate)
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
    waiting = hold(sequencer, gate)
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
    with pytest.raises(ClockAhead):
        append(replace(resume(4), issued_at=timestamp(datetime.now(UTC) + timedelta(seconds=400))))
    assert append(replace(resume(4), issued_at=at(199))) == [6]  # before the halt: it counts from the halt on
    with pytest.raises(FormatError, match="halt_index"):
        append(replace(resume(4), reason="again"))
    check_whole_log(store)


@pytest.mark.parametrize(
    ("outcome", "by", "own"),
    [
        ("EXACT", {"verification": "decode", "replayed_by": "auditor"}, True),
        ("DEVIATION", {"verification": "prefill", "replayed_by": "auditor"}, True),
        ("SAME", {"verification": "again", "replayed_by": "engine"}, False),
        ("DEVIATION", {"verification": "again", "replayed_by": "engine"}, False),
        ("UNCHECKED", {"reason": "no means"}, False),
    ],
)
def test_a_verdict_is_of_the_strength_that_its_receipt_allows(
    outcome: str, by: dict[str, str], own: bool, sequencer: Sequencer
) -> None:
    for index, document in enumerate((receipt(0), foreign_receipt(1))):
        assert sequencer.append(signed(document)).result().index == index
    fits, other = (0, 1) if own else (1, 0)
    with pytest.raises(FormatError) as caught:
        sequencer.append(signed(verdict(other, other, outcome, **by))).result()
    assert caught.value.field == "outcome"
    assert sequencer.append(signed(verdict(fits, fits, outcome, **by))).result().index == 2


@pytest.mark.parametrize(
    ("outcome", "compared", "position", "field"),
    [
        ("EXACT", 3, None, "tokens_compared"),
        ("EXACT", 1, None, "tokens_compared"),
        ("EXACT", 0, None, "tokens_compared"),
        ("UNREPLAYABLE", 3, None, "tokens_compared"),
        ("DEVIATION", 4, 1, "tokens_compared"),
        ("DEVIATION", 3, 3, "deviation.position"),
        ("EXACT", 2, None, None),
        ("UNREPLAYABLE", 0, None, None),
        ("DEVIATION", 3, 2, None),  # the replay continued after the end of the output
    ],
)
def test_a_verdict_compares_no_more_tokens_than_the_output_has(
    outcome: str, compared: int, position: int | None, field: str | None, sequencer: Sequencer
) -> None:
    sequencer.append(signed_receipt(0)).result()
    deviation = None if position is None else Deviation(position, 7, None, 0.5, None)
    document = verdict(0, 0, outcome, tokens_compared=compared, deviation=deviation)
    if field is None:
        assert sequencer.append(signed(document)).result().index == 1
        return
    with pytest.raises(FormatError) as caught:
        sequencer.append(signed(document)).result()
    assert caught.value.field == field
    envelopes = (signed_receipt(0), signed(document))
    entries = [Entry(index, Envelope.from_bytes(data)).to_bytes() for index, data in enumerate(envelopes)]
    assert verify_log(entries, None, TRUSTED).bad_index == 1


def test_of_two_erasures_in_one_batch_one_is_taken(store: MemoryEntryStore) -> None:
    writer = recover(cast(EntryStore, store), KEYS["log"], TRUSTED, ORIGIN, MemoryGuard())
    writer.write([admit(signed_receipt(0), None, TRUSTED)])
    documents = (erasure(0, 0), erasure(0, 0, reason="again"), erasure(0, 0))
    answers = writer.write([admit(signed(document), None, TRUSTED) for document in documents])
    assert [answer.index if isinstance(answer, Appended) else type(answer) for answer in answers] == [1, Conflict, 1]


NEW, NEW_LOG = seeded_key(b"\x21" * 32, "receipts"), seeded_key(b"\x22" * 32, "log")
TRUSTING = TrustedKeys(TrustedKeys.of(*KEYS.values(), NEW, NEW_LOG).by_role, FixedThreshold(((0, 2), (500, 1))))


def rotation(new: Signer, old: Signer, by: Signer | None = None) -> bytes:
    return sign_rotation(KeyEntry(new.role, new.public, at(0), replaces=old.key_id), new, by or old).to_bytes()


BY_NEW = sign_document(receipt(0), NEW).to_bytes()
HALTED = tuple(signed(document) for document in (receipt(0), verdict(0, 0, "DEVIATION"), halt(1)))
REPLACED = rotation(NEW, KEYS["receipts"])


@pytest.mark.parametrize("way", ["in one batch", "in another batch", "after a restart"])
@pytest.mark.parametrize(
    ("before", "refused"),
    [
        ((BY_NEW,), REPLACED),
        ((REPLACED,), signed_receipt(0)),
        ((REPLACED,), rotation(KEYS["receipts"], NEW)),
        ((signed_receipt(0),), rotation(NEW, KEYS["receipts"], by=KEYS["operator"])),  # one operator of two
        (HALTED, signed(resume(2))),
        ((), rotation(NEW_LOG, KEYS["log"])),  # this ledger would sign with the replaced key
    ],
)
def test_an_entry_is_refused_for_its_signers_at_its_index(before: tuple[bytes, ...], refused: bytes, way: str) -> None:
    store, guard = cast(EntryStore, MemoryEntryStore()), MemoryGuard()
    batches = [[envelope] for envelope in (*before, refused)]
    if way == "in one batch":
        batches[-2:] = [[*before[-1:], refused]]
    answers: list[Appended | LedgerError] = []
    writer = recover(store, KEYS["log"], TRUSTING, ORIGIN, guard)
    for batch in batches:
        answers += writer.write([admit(envelope, None, TRUSTING) for envelope in batch])
        writer = recover(store, KEYS["log"], TRUSTING, ORIGIN, guard) if way == "after a restart" else writer
    assert [isinstance(answer, Appended) for answer in answers] == [True] * len(before) + [False]
    assert isinstance(answers[-1], FormatError | SignatureError)
    assert verify_log(store.entries(0, 9), store.latest_checkpoint(), TRUSTING).ok


def test_a_halt_raises_the_epoch_that_answers_carry(sequencer: Sequencer) -> None:
    for document in (receipt(0), verdict(0, 0, "DEVIATION")):
        assert sequencer.append(signed(document)).result().halt_epoch == 0
    assert sequencer.append(signed(halt(1))).result().halt_epoch == 1
    assert [each.scope for each in sequencer.board.latest().halts.open] == [Scope(BASE, "lookahead")]
    assert sequencer.append(signed(resume(2))).result().halt_epoch == 1
    assert not sequencer.board.latest().halts.open


def test_closing_writes_what_is_queued_and_takes_no_more(store: MemoryEntryStore) -> None:
    gate = Gate()
    sequencer = open_sequencer(FaultyStore(store, gate))
    waiting = hold(sequencer, gate)
    futures = [sequencer.append(signed_receipt(number)) for number in range(5)]
    closer = threading.Thread(target=sequencer.close)
    closer.start()
    gate.open.set()
    closer.join()
    assert [future.result().index for future in (waiting, *futures)] == list(range(6))
    with pytest.raises(Stopped):
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


def test_a_document_of_the_greatest_size_fits_and_a_greater_one_is_refused(sequencer: Sequencer) -> None:
    room = 45_000 - len(Envelope.from_bytes(signed_receipt(0)).payload)
    big = receipt(0)
    fits = replace(big, sampling=replace(big.sampling, stop=("x" * (room // 2), "y" * (room // 2 - 10))))
    assert sequencer.append(signed(fits)).result().index == 0
    huge = replace(big, sampling=replace(big.sampling, stop=("x" * 60_000,)))
    with pytest.raises(FormatError, match="envelope"):
        sequencer.append(signed(huge))


def test_a_receipt_whose_key_is_trusted_no_longer_when_it_is_written_is_refused() -> None:
    store, gate, keys = MemoryEntryStore(), Gate(), dict(TRUSTED.by_role)

    class Directory(dict[str, tuple[PublicKey, ...]]):
        def now(self) -> TrustedKeys:
            return current

    current = TrustedKeys(keys)
    sequencer = Sequencer(
        cast(EntryStore, FaultyStore(store, gate)),
        KEYS["log"],
        TrustedKeys(Directory(keys)),
        ORIGIN,
        guard=MemoryGuard(),
    )
    before = hold(sequencer, gate)
    waiting = [sequencer.append(signed_receipt(1), content(1)), sequencer.append(signed(key_entry("auditor")))]
    current = TrustedKeys(keys | {"receipts": (STRANGER.public,)})
    gate.open.set()
    assert before.result().index == 0
    with pytest.raises(SignatureError):
        waiting[0].result()
    assert waiting[1].result().index == 1
    current = TrustedKeys(keys)
    assert sequencer.append(signed_receipt(2), content(2)).result().index == 2
    sequencer.close()
    assert store.content(2) == content(2)
    check_whole_log(store)


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


def test_a_reader_finds_receipts_with_their_content_and_verdicts(
    store: MemoryEntryStore, sequencer: Sequencer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = LedgerReader(store, sequencer.board)
    for number in range(4):
        sequencer.append(signed_receipt(number, tenant="even" if number % 2 == 0 else "odd"), content(number)).result()
    for document in (verdict(2, 2, "UNREPLAYABLE"), verdict(2, 2)):
        sequencer.append(signed(document)).result()
    found = reader.receipt(receipt_id(2))
    assert (found.index, found.has_content, reader.content(2)) == (2, True, content(2))
    assert [(row.index, row.outcome) for row in found.verdicts] == [(4, "UNREPLAYABLE"), (5, "EXACT")]
    monkeypatch.setattr("ledger.log.reader._MOST_VERDICTS", 1)
    assert [row.index for row in reader.receipt(receipt_id(2)).verdicts] == [5]
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
    for size in (3, 4, 5):
        verify_inclusion(leaf_hash(reader.entry(2)), 2, size, reader.inclusion_proof(2, size), reader.root(size))
    assert reader.inclusion_proof(2) == reader.inclusion_proof(2, 5)
    verify_consistency(3, 5, reader.consistency_proof(3), reader.root(3), reader.root(5))
    for index, size in ((5, 5), (0, 6), (-1, 3), (3, 3)):
        with pytest.raises(NotFound):
            reader.inclusion_proof(index, size)
    for old, new in ((3, 2), (0, 6), (-1, 2)):
        with pytest.raises(NotFound):
            reader.consistency_proof(old, new)

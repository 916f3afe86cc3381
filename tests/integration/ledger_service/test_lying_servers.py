"""A client's checks find every tampered answer of a server: real gRPC, a real log, one tampered answer each."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kolm.ledger.v1 import documents_pb2
from kolm.ledger.v1 import ledger_pb2 as pb
from ledger.errors import FormatError, LedgerError, ProofError, SignatureError
from ledger.keys.ed25519 import SigningKey
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.receipt_filter import ReceiptFilter
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.entry import Entry
from services.client.ledger.log import Appended
from services.client.ledger.log_wire import content_message
from services.client.ledger.verified import RememberedCheckpoint, VerifiedLedger
from services.ledger.settings import LedgerSettings
from tests.integration.ledger_service.liar import Liar, Lie, lying
from tests.keys import seeded_key
from tests.unit.ledger.builders import ORIGIN, content, key_entry, receipt, receipt_id, signed, signed_receipt, verdict


@pytest.fixture
def liar(settings: LedgerSettings) -> Iterator[Liar]:
    """Entries 0 to 3 and 5 are receipts of acme, 4 is a key, 6 a receipt of another tenant."""
    with lying(settings) as liar:
        others = [signed(key_entry("auditor")), signed_receipt(5), signed(receipt(6, tenant="other"))]
        for envelope in [*(signed_receipt(number) for number in range(4)), *others]:
            liar.client.append(envelope)
        yield liar


def proving(liar: Liar, settings: LedgerSettings, path: Path | None = None) -> VerifiedLedger:
    trusted = TrustedKeys.load(settings.trusted_directory)
    return VerifiedLedger(liar.client, trusted, RememberedCheckpoint(path), origin=ORIGIN)


@pytest.fixture
def proven(liar: Liar, settings: LedgerSettings) -> VerifiedLedger:
    return proving(liar, settings)


def log_key(settings: LedgerSettings) -> SigningKey:
    return SigningKey.load(settings.log_key, "log")


def flip_a_hash(page: pb.ListReceiptsResponse) -> None:
    page.multi_proof.hashes[0] = bytes(32)


def another_size(page: pb.ListReceiptsResponse) -> None:
    page.multi_proof.tree_size -= 1


def another_order(page: pb.ListReceiptsResponse) -> None:
    first, second = page.receipts[0].index, page.receipts[1].index
    page.receipts[0].index, page.receipts[1].index = second, first


def another_receipt(page: pb.ListReceiptsResponse) -> None:
    page.receipts[0].envelope = signed_receipt(9)


def a_receipt_that_was_not_asked_for(page: pb.ListReceiptsResponse) -> None:
    page.receipts[0].envelope = signed(receipt(0, tenant="other"))


def an_unsigned_receipt(page: pb.ListReceiptsResponse) -> None:
    page.receipts[0].envelope = page.receipts[0].envelope.replace(b'"sig":"', b'"sig":"AAAA')


def a_checkpoint_without_signature(answer: Any) -> None:
    answer.checkpoint = answer.checkpoint.split(b"\n\n")[0] + b"\n\n"


QUERY = ReceiptFilter(tenant="acme", max_index=5)


TAMPERED = (
    (flip_a_hash, ProofError),
    (another_size, ProofError),
    (another_order, ProofError),
    (another_receipt, ProofError),
    (a_receipt_that_was_not_asked_for, ProofError),
    (an_unsigned_receipt, LedgerError),
    (a_checkpoint_without_signature, LedgerError),
)


@pytest.mark.parametrize("complete", [False, True])
def test_a_tampered_page_is_not_believed(
    liar: Liar, proven: VerifiedLedger, complete: bool, subtests: pytest.Subtests
) -> None:
    assert len(list(proven.receipts(QUERY, complete=complete))) == 5
    for lie, error in TAMPERED:
        liar.lies["ListReceipts"] = lie
        with subtests.test(lie.__name__), pytest.raises(error):
            list(proven.receipts(QUERY, complete=complete))


def test_a_row_that_is_left_out_is_found_only_by_a_complete_listing(liar: Liar, proven: VerifiedLedger) -> None:
    (honest,) = liar.client.receipt_pages(ReceiptFilter(tenant="acme", min_index=1, max_index=5))

    def omit_the_first(page: pb.ListReceiptsResponse) -> None:
        del page.receipts[0]
        page.multi_proof.hashes[:] = honest.hashes

    liar.lies["ListReceipts"] = omit_the_first
    assert [row.index for row in proven.receipts(QUERY)] == [1, 2, 3, 5]
    with pytest.raises(ProofError):
        list(proven.receipts(QUERY, complete=True))


def hide_as_another_entry(page: pb.ListReceiptsResponse) -> None:
    """The row goes, and its entry comes back among the entries that do not match."""
    row = page.receipts[1]
    entry = _entry_bytes(row)
    del page.receipts[1]
    page.complete_range.other_entries.insert(0, entry)


def swap_the_hidden(page: pb.ListReceiptsResponse) -> None:
    """In its place, the entry of another index is shown."""
    del page.receipts[1]
    page.complete_range.other_entries.insert(0, page.complete_range.other_entries[0])


def shorten(page: pb.ListReceiptsResponse) -> None:
    """The last row and its place are gone."""
    del page.receipts[-1]
    page.complete_range.end_index -= 1


def end_early(page: pb.ListReceiptsResponse) -> None:
    page.next_page_token = ""


def begin_late(page: pb.ListReceiptsResponse) -> None:
    del page.receipts[0]
    page.complete_range.start_index += 1


def claim_nothing(page: pb.ListReceiptsResponse) -> None:
    page.ClearField("complete_range")


INCOMPLETE = (
    (hide_as_another_entry, 0, "entry 1 is a receipt that was asked for, and the list leaves it out"),
    (swap_the_hidden, 0, "shown in the place of entry 1"),
    (shorten, 0, "leads to another root|too"),
    (end_early, 2, "the list ends at entry 2, expected the range up to entry 6"),
    (begin_late, 0, "leads to another root|too|begins at entry 1"),
    (claim_nothing, 0, "does not show that nothing was left out"),
)


def test_a_list_that_is_not_complete_is_not_believed(
    liar: Liar, settings: LedgerSettings, subtests: pytest.Subtests
) -> None:
    for lie, page_size, why in INCOMPLETE:
        liar.lies["ListReceipts"] = lie
        with subtests.test(lie.__name__), pytest.raises(ProofError, match=why):
            list(proving(liar, settings).receipts(QUERY, complete=True, page_size=page_size))


def test_proven_rows_that_were_not_asked_for_are_not_believed(
    liar: Liar, settings: LedgerSettings, subtests: pytest.Subtests
) -> None:
    for unheard, query in (("tenant", ReceiptFilter(tenant="other")), ("max_index", ReceiptFilter(max_index=3))):
        liar.mishearings["ListReceipts"] = lambda request, unheard=unheard: request.ClearField(unheard)
        for complete in (False, True):
            with subtests.test(unheard, complete=complete), pytest.raises(ProofError):
                list(proving(liar, settings).receipts(query, complete=complete))


@pytest.mark.parametrize(
    ("mishear", "why"),
    [
        (lambda request: setattr(request, "min_index", 1), "begins at entry 1, .* ended at entry 0"),
        (lambda request: setattr(request, "max_index", 3), "the list ends at entry 4, .* to entry 6"),
    ],
)
def test_a_proven_list_of_less_than_was_asked_for_is_not_complete(
    liar: Liar, settings: LedgerSettings, mishear: Lie, why: str
) -> None:
    liar.mishearings["ListReceipts"] = mishear
    assert list(proving(liar, settings).receipts(QUERY))
    with pytest.raises(ProofError, match=why):
        list(proving(liar, settings).receipts(QUERY, complete=True))


def test_a_server_that_proves_an_empty_list_of_a_log_it_made_up_is_found_out_by_what_was_seen_before(
    liar: Liar, settings: LedgerSettings, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    head = proving(liar, settings, seen).head()
    fork = sign_checkpoint(Checkpoint(ORIGIN, head.size, bytes(32)), log_key(settings))
    shorter = sign_checkpoint(Checkpoint(ORIGIN, head.size - 2, bytes(32)), log_key(settings))
    longer = sign_checkpoint(Checkpoint(ORIGIN, head.size + 2, bytes(32)), log_key(settings))
    for note, why in ((fork, "it has forked"), (shorter, "does not contain"), (longer, "cannot show")):
        liar.lies["GetCheckpoint"] = lambda answer, note=note: setattr(answer, "checkpoint", note)
        with pytest.raises(ProofError, match=why):
            proving(liar, settings, seen).head()  # another process: it only knows the file
    liar.lies.clear()
    assert proving(liar, settings, seen).head() == head


def test_a_forged_consistency_proof_is_not_believed(liar: Liar, proven: VerifiedLedger) -> None:
    proven.head()
    liar.client.append(signed_receipt(7))
    liar.lies["GetConsistencyProof"] = lambda answer: answer.consistency_proof.hashes.__setitem__(0, bytes(32))
    with pytest.raises(ProofError):
        proven.head()
    liar.lies.clear()
    assert proven.head().size == 8


def test_a_checkpoint_of_another_log_or_key_is_not_believed(
    liar: Liar, settings: LedgerSettings, proven: VerifiedLedger
) -> None:
    head = proven.head()
    stranger = sign_checkpoint(head, seeded_key(b"\x09" * 32, "log"))
    elsewhere = sign_checkpoint(Checkpoint("elsewhere.example/log", head.size, head.root), log_key(settings))
    for note, error in ((stranger, SignatureError), (elsewhere, FormatError)):
        liar.lies["GetCheckpoint"] = lambda answer, note=note: setattr(answer, "checkpoint", note)
        with pytest.raises(error):
            proven.head()


@pytest.mark.parametrize(
    "lie",
    [
        lambda answer: setattr(answer, "index", 3),
        lambda answer: answer.inclusion_proof.hashes.__setitem__(0, bytes(32)),
    ],
)
def test_an_append_that_is_not_proven_is_not_believed(liar: Liar, proven: VerifiedLedger, lie: Lie) -> None:
    assert isinstance(proven.append(signed_receipt(8)), Appended)
    liar.lies["AppendEntry"] = lie
    with pytest.raises(ProofError):
        proven.append(signed_receipt(9))


def _unproven(answer: Any) -> None:
    answer.ClearField("inclusion_proof")


def _wrongly_proven(answer: Any) -> None:
    answer.inclusion_proof.hashes[0] = bytes(32)


def _asked_for(field: str, value: Any) -> Lie:
    return lambda request: setattr(request, field, value)


def test_an_entry_or_a_receipt_that_is_not_proven_is_not_believed(
    liar: Liar, proven: VerifiedLedger, subtests: pytest.Subtests
) -> None:
    assert Entry.from_bytes(proven.entry(2).entry).index == proven.receipt(receipt_id(2)).receipt.index == 2
    for lie in (_unproven, _wrongly_proven, a_checkpoint_without_signature):
        liar.lies["GetEntry"] = liar.lies["GetReceipt"] = lie
        for ask, name in ((proven.entry, 2), (proven.receipt, receipt_id(2))):
            with subtests.test(lie.__name__, name=name), pytest.raises(LedgerError):
                ask(name)  # type: ignore[operator]


def test_another_entry_or_receipt_than_the_one_asked_for_is_not_believed(liar: Liar, settings: LedgerSettings) -> None:
    liar.mishearings["GetEntry"] = _asked_for("index", 1)
    liar.mishearings["GetReceipt"] = _asked_for("receipt_id", receipt_id(1))
    for ask in (lambda ledger: ledger.entry(2), lambda ledger: ledger.receipt(receipt_id(2))):
        with pytest.raises(ProofError):
            ask(proving(liar, settings))


BESIDE: tuple[tuple[Lie, str], ...] = (
    (_wrongly_proven, "root"),
    (lambda answer: answer.content.CopyFrom(content_message(content(1))), "not what the receipt commits to"),
    (lambda answer: setattr(answer.receipt, "outcome", documents_pb2.OUTCOME_EXACT), "newest verdict as DEVIATION"),
    (lambda answer: setattr(answer.verdicts[0], "envelope", signed(verdict(1, 1))), "is not on"),
    (lambda answer: setattr(answer.verdicts[0], "envelope", signed_receipt(2)), "is not one"),
    (lambda answer: answer.ClearField("verdicts"), "its newest verdict as None"),
)


def test_a_receipt_beside_which_something_else_is_said_is_not_believed(
    liar: Liar, proven: VerifiedLedger, subtests: pytest.Subtests
) -> None:
    liar.client.append(signed(verdict(2, 2, "DEVIATION")))
    assert proven.receipt(receipt_id(2)).verdicts[0].document.outcome == "DEVIATION"
    for lie, why in BESIDE:
        liar.lies["GetReceipt"] = lie
        with subtests.test(why), pytest.raises(LedgerError, match=why):
            proven.receipt(receipt_id(2))


def _entry_bytes(row: Any) -> bytes:
    return Entry(row.index, Envelope.from_bytes(row.envelope)).to_bytes()

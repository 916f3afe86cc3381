"""A client's checks find every tampered answer of a server: real gRPC, a real log, one tampered answer each."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from kolm.ledger.v1 import documents_pb2
from kolm.ledger.v1 import ledger_pb2 as pb
from kolm.ledger.v1.ledger_pb2_grpc import add_LedgerServiceServicer_to_server
from ledger.errors import FormatError, LedgerError, ProofError, SignatureError
from ledger.keys.ed25519 import SigningKey
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.receipt_filter import ReceiptFilter
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.entry import Entry
from services.client.ledger.ledger import LedgerClient
from services.client.ledger.log import Appended
from services.client.ledger.verified import RememberedCheckpoint, VerifiedLedger
from services.ledger.__main__ import opened_servicer
from services.ledger.servicer import SERVICE
from services.ledger.settings import LedgerSettings
from services.runtime.server import Mount
from tests.integration.ledger_service.test_appending import wire_content
from tests.keys import seeded_key
from tests.serving import serving
from tests.unit.ledger.builders import ORIGIN, key_entry, receipt, receipt_id, signed, signed_receipt, verdict

Lie = Callable[[Any], None]


class Liar:
    """Answers as the real servicer does; `lies` change the answers of single methods on their way out, `mishearings`
    the requests on their way in, so that a true answer to another question comes back.
    """

    def __init__(self, honest: Any) -> None:
        self._honest = honest
        self.lies: dict[str, Lie] = {}
        self.mishearings: dict[str, Lie] = {}

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._honest, name)
        if name not in (
            "ListReceipts",
            "AppendEntry",
            "GetCheckpoint",
            "GetConsistencyProof",
            "GetEntry",
            "GetReceipt",
        ):
            return method

        async def answer(request: Any, context: Any) -> Any:
            self.mishearings.get(name, lambda _: None)(request)
            response = await method(request, context)
            self.lies.get(name, lambda _: None)(response)
            return response

        return answer


@contextmanager
def lying(settings: LedgerSettings) -> Iterator[tuple[Liar, LedgerClient]]:
    with opened_servicer(settings, CollectorRegistry()) as servicer:
        liar = Liar(servicer)
        mount = Mount(SERVICE, lambda server: add_LedgerServiceServicer_to_server(liar, server))  # type: ignore[arg-type]
        with serving(mount, on_drain=servicer.close) as served, LedgerClient.connect(served.address, wait=60) as client:
            yield liar, client


@pytest.fixture
def liar_and_client(settings: LedgerSettings) -> Iterator[tuple[Liar, LedgerClient]]:
    """Entries 0 to 3 and 5 are receipts of acme, 4 is a key, 6 a receipt of another tenant."""
    with lying(settings) as (liar, client):
        others = [signed(key_entry("auditor")), signed_receipt(5), signed(receipt(6, tenant="other"))]
        for envelope in [*(signed_receipt(number) for number in range(4)), *others]:
            client.append(envelope)
        yield liar, client


def proving(client: LedgerClient, settings: LedgerSettings, path: Path | None = None) -> VerifiedLedger:
    trusted = TrustedKeys.load(settings.trusted_directory)
    return VerifiedLedger(client, trusted, RememberedCheckpoint(path), origin=ORIGIN)


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
    liar_and_client: tuple[Liar, LedgerClient], settings: LedgerSettings, complete: bool, subtests: pytest.Subtests
) -> None:
    liar, client = liar_and_client
    ledger = proving(client, settings)
    assert len(list(ledger.receipts(QUERY, complete=complete))) == 5
    for lie, error in TAMPERED:
        liar.lies["ListReceipts"] = lie
        with subtests.test(lie.__name__), pytest.raises(error):
            list(ledger.receipts(QUERY, complete=complete))


def test_a_row_that_is_left_out_is_found_only_by_a_complete_listing(
    liar_and_client: tuple[Liar, LedgerClient], settings: LedgerSettings
) -> None:
    liar, client = liar_and_client
    ledger = proving(client, settings)
    (honest,) = client.receipt_pages(ReceiptFilter(tenant="acme", min_index=1, max_index=5))

    def omit_the_first(page: pb.ListReceiptsResponse) -> None:
        del page.receipts[0]
        page.multi_proof.hashes[:] = honest.hashes

    liar.lies["ListReceipts"] = omit_the_first
    assert [row.index for row in ledger.receipts(QUERY)] == [1, 2, 3, 5]
    with pytest.raises(ProofError):
        list(ledger.receipts(QUERY, complete=True))


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
    liar_and_client: tuple[Liar, LedgerClient], settings: LedgerSettings, subtests: pytest.Subtests
) -> None:
    liar, client = liar_and_client
    for lie, page_size, why in INCOMPLETE:
        liar.lies["ListReceipts"] = lie
        with subtests.test(lie.__name__), pytest.raises(ProofError, match=why):
            list(proving(client, settings).receipts(QUERY, complete=True, page_size=page_size))


def test_proven_rows_that_were_not_asked_for_are_not_believed(
    liar_and_client: tuple[Liar, LedgerClient], settings: LedgerSettings, subtests: pytest.Subtests
) -> None:
    liar, client = liar_and_client
    for unheard, query in (("tenant", ReceiptFilter(tenant="other")), ("max_index", ReceiptFilter(max_index=3))):
        liar.mishearings["ListReceipts"] = lambda request, unheard=unheard: request.ClearField(unheard)
        for complete in (False, True):
            with subtests.test(unheard, complete=complete), pytest.raises(ProofError):
                list(proving(client, settings).receipts(query, complete=complete))


@pytest.mark.parametrize(
    ("mishear", "why"),
    [
        (lambda request: setattr(request, "min_index", 1), "begins at entry 1, .* ended at entry 0"),
        (lambda request: setattr(request, "max_index", 3), "the list ends at entry 4, .* to entry 6"),
    ],
)
def test_a_proven_list_of_less_than_was_asked_for_is_not_complete(
    liar_and_client: tuple[Liar, LedgerClient], settings: LedgerSettings, mishear: Lie, why: str
) -> None:
    liar, client = liar_and_client
    liar.mishearings["ListReceipts"] = mishear
    assert list(proving(client, settings).receipts(QUERY))
    with pytest.raises(ProofError, match=why):
        list(proving(client, settings).receipts(QUERY, complete=True))


def test_a_server_that_proves_an_empty_list_of_a_log_it_made_up_is_found_out_by_what_was_seen_before(
    liar_and_client: tuple[Liar, LedgerClient], settings: LedgerSettings, tmp_path: Path
) -> None:
    liar, client = liar_and_client
    seen = tmp_path / "seen"
    head = proving(client, settings, seen).head()
    fork = sign_checkpoint(Checkpoint(ORIGIN, head.size, bytes(32)), log_key(settings))
    shorter = sign_checkpoint(Checkpoint(ORIGIN, head.size - 2, bytes(32)), log_key(settings))
    longer = sign_checkpoint(Checkpoint(ORIGIN, head.size + 2, bytes(32)), log_key(settings))
    for note, why in ((fork, "it has forked"), (shorter, "does not contain"), (longer, "cannot show")):
        liar.lies["GetCheckpoint"] = lambda answer, note=note: setattr(answer, "checkpoint", note)
        with pytest.raises(ProofError, match=why):
            proving(client, settings, seen).head()  # another process: it only knows the file
    liar.lies.clear()
    assert proving(client, settings, seen).head() == head


def test_a_forged_consistency_proof_is_not_believed(
    liar_and_client: tuple[Liar, LedgerClient], settings: LedgerSettings
) -> None:
    liar, client = liar_and_client
    ledger = proving(client, settings)
    ledger.head()
    client.append(signed_receipt(7))
    liar.lies["GetConsistencyProof"] = lambda answer: answer.consistency_proof.hashes.__setitem__(0, bytes(32))
    with pytest.raises(ProofError):
        ledger.head()
    liar.lies.clear()
    assert ledger.head().size == 8


def test_a_checkpoint_of_another_log_or_key_is_not_believed(
    liar_and_client: tuple[Liar, LedgerClient], settings: LedgerSettings
) -> None:
    liar, client = liar_and_client
    ledger = proving(client, settings)
    head = ledger.head()
    stranger = sign_checkpoint(head, seeded_key(b"\x09" * 32, "log"))
    elsewhere = sign_checkpoint(Checkpoint("elsewhere.example/log", head.size, head.root), log_key(settings))
    for note, error in ((stranger, SignatureError), (elsewhere, FormatError)):
        liar.lies["GetCheckpoint"] = lambda answer, note=note: setattr(answer, "checkpoint", note)
        with pytest.raises(error):
            ledger.head()


@pytest.mark.parametrize(
    "lie",
    [
        lambda answer: setattr(answer, "index", 3),
        lambda answer: answer.inclusion_proof.hashes.__setitem__(0, bytes(32)),
    ],
)
def test_an_append_that_is_not_proven_is_not_believed(
    liar_and_client: tuple[Liar, LedgerClient], settings: LedgerSettings, lie: Lie
) -> None:
    liar, client = liar_and_client
    ledger = proving(client, settings)
    assert isinstance(ledger.append(signed_receipt(8)), Appended)
    liar.lies["AppendEntry"] = lie
    with pytest.raises(ProofError):
        ledger.append(signed_receipt(9))


def _unproven(answer: Any) -> None:
    answer.ClearField("inclusion_proof")


def _wrongly_proven(answer: Any) -> None:
    answer.inclusion_proof.hashes[0] = bytes(32)


def _asked_for(field: str, value: Any) -> Lie:
    return lambda request: setattr(request, field, value)


def test_an_entry_or_a_receipt_that_is_not_proven_is_not_believed(
    liar_and_client: tuple[Liar, LedgerClient], settings: LedgerSettings, subtests: pytest.Subtests
) -> None:
    liar, client = liar_and_client
    ledger = proving(client, settings)
    assert Entry.from_bytes(ledger.entry(2).entry).index == ledger.receipt(receipt_id(2)).receipt.index == 2
    for lie in (_unproven, _wrongly_proven, a_checkpoint_without_signature):
        liar.lies["GetEntry"] = liar.lies["GetReceipt"] = lie
        for ask, name in ((ledger.entry, 2), (ledger.receipt, receipt_id(2))):
            with subtests.test(lie.__name__, name=name), pytest.raises(LedgerError):
                ask(name)  # type: ignore[operator]


def test_another_entry_or_receipt_than_the_one_asked_for_is_not_believed(
    liar_and_client: tuple[Liar, LedgerClient], settings: LedgerSettings
) -> None:
    liar, client = liar_and_client
    liar.mishearings["GetEntry"] = _asked_for("index", 1)
    liar.mishearings["GetReceipt"] = _asked_for("receipt_id", receipt_id(1))
    for ask in (lambda ledger: ledger.entry(2), lambda ledger: ledger.receipt(receipt_id(2))):
        with pytest.raises(ProofError):
            ask(proving(client, settings))


def _forged_content(answer: Any) -> None:
    kept = wire_content(1)
    answer.content.prompt_salt, answer.content.output_salt = kept.prompt_salt, kept.output_salt
    answer.content.prompt_token_ids.extend(kept.prompt_token_ids)
    answer.content.output_token_ids.extend(kept.output_token_ids)


BESIDE: tuple[tuple[Lie, str], ...] = (
    (_wrongly_proven, "root"),
    (_forged_content, "not what the receipt commits to"),
    (lambda answer: setattr(answer.receipt, "outcome", documents_pb2.OUTCOME_EXACT), "newest verdict as DEVIATION"),
    (lambda answer: setattr(answer.verdicts[0], "envelope", signed(verdict(1, 1))), "is not on"),
    (lambda answer: setattr(answer.verdicts[0], "envelope", signed_receipt(2)), "is not one"),
    (lambda answer: answer.ClearField("verdicts"), "its newest verdict as None"),
)


def test_a_receipt_beside_which_something_else_is_said_is_not_believed(
    liar_and_client: tuple[Liar, LedgerClient], settings: LedgerSettings, subtests: pytest.Subtests
) -> None:
    liar, client = liar_and_client
    client.append(signed(verdict(2, 2, "DEVIATION")))
    ledger = proving(client, settings)
    assert ledger.receipt(receipt_id(2)).verdicts[0].document.outcome == "DEVIATION"
    for lie, why in BESIDE:
        liar.lies["GetReceipt"] = lie
        with subtests.test(why), pytest.raises(LedgerError, match=why):
            ledger.receipt(receipt_id(2))


def _entry_bytes(row: Any) -> bytes:
    return Entry(row.index, Envelope.from_bytes(row.envelope)).to_bytes()

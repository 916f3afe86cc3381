"""ListReceipts over the wire: every filter, paging, and the proofs of pages."""

import itertools
from datetime import timedelta
from typing import Any

import pytest

from kolm.ledger.v1 import ledger_pb2
from kolm.ledger.v1.ledger_pb2_grpc import LedgerServiceStub
from ledger.encoding.text_forms import cid
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.receipt_filter import ReceiptFilter
from services.client.errors import InvalidArgument
from services.client.ledger.ledger import LedgerClient
from services.client.ledger.verified import VerifiedLedger
from services.ledger.settings import LedgerSettings
from tests.mutations import replace
from tests.unit.ledger.builders import BASE, PROFILE, START, key_entry, receipt, signed, verdict

HEAD, ADAPTER, OTHER = cid(b"head"), cid(b"adapter"), cid(b"other")

# Entries 0 to 5 are receipts, 6 and 7 verdicts, 8 a key, 9 a receipt.
RECEIPTS = {
    0: receipt(0),
    1: receipt(1, tenant="other"),
    2: receipt(2, spec_decode=replace(receipt(2).spec_decode, method="eagle3", head_cid=HEAD)),
    3: receipt(3, adapter_cid=ADAPTER),
    4: receipt(4, profile_cid=OTHER),
    5: receipt(5, base_cid=OTHER),
    9: receipt(9, tenant="other"),
}
ENTRIES = [
    *(signed(RECEIPTS[index]) for index in range(6)),
    signed(verdict(1, 1, "DEVIATION")),
    signed(verdict(2, 2)),
    signed(key_entry("auditor")),
    signed(RECEIPTS[9]),
]

QUERIES: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [0, 1, 2, 3, 4, 5, 9]),
    ({"tenant": "other"}, [1, 9]),
    ({"method": "eagle3"}, [2]),
    ({"base_cid": BASE}, [0, 1, 2, 3, 4, 9]),
    ({"head_cid": HEAD}, [2]),
    ({"adapter_cid": ADAPTER}, [3]),
    ({"profile_cid": PROFILE}, [0, 1, 2, 3, 5, 9]),
    ({"request_id": "request-4"}, [4]),
    ({"start_time": START + timedelta(seconds=4)}, [4, 5, 9]),
    ({"end_time": START + timedelta(seconds=4)}, [0, 1, 2, 3]),
    ({"start_time": START + timedelta(seconds=1, microseconds=1), "end_time": START + timedelta(seconds=3)}, [2]),
    ({"min_index": 2, "max_index": 4}, [2, 3, 4]),
    ({"min_index": 6, "max_index": 8}, []),
    ({"min_index": 100}, []),
    ({"max_index": 2**63}, [0, 1, 2, 3, 4, 5, 9]),
    ({"commitment": receipt(3).prompt.commitment}, [3]),
    ({"commitment": receipt(9).output.commitment}, [9]),
    ({"commitment": receipt(9).output.commitment, "tenant": "acme"}, []),
    ({"tenant": "acme", "min_index": 1, "end_time": START + timedelta(seconds=5)}, [2, 3, 4]),
]


@pytest.fixture
def filled(ledger: LedgerClient) -> LedgerClient:
    for envelope in ENTRIES:
        ledger.append(envelope)
    return ledger


@pytest.fixture
def proving(filled: LedgerClient, settings: LedgerSettings) -> VerifiedLedger:
    return VerifiedLedger(filled, TrustedKeys.load(settings.trusted_directory))


def test_every_filter_narrows_and_every_page_is_proven(proving: VerifiedLedger) -> None:
    for (query, expected), page_size in itertools.product(QUERIES, (0, 1, 2, 3)):
        listed = list(proving.receipts(ReceiptFilter(**query), page_size=page_size))
        assert [row.index for row in listed] == expected, query
        # The same list, with the proof that nothing was left out of the range.
        assert list(proving.receipts(ReceiptFilter(**query), page_size=page_size, complete=True)) == listed


def test_the_outcome_of_the_newest_verdict_narrows_too(filled: LedgerClient, proving: VerifiedLedger) -> None:
    assert [row.index for row in proving.receipts(ReceiptFilter(outcome="DEVIATION"))] == [1]
    assert [row.index for row in proving.receipts(ReceiptFilter(outcome="EXACT"))] == [2]
    assert not list(filled.receipts(ReceiptFilter(outcome="UNREPLAYABLE")))
    with pytest.raises(InvalidArgument, match="FINE"):
        list(filled.receipts(ReceiptFilter(outcome="FINE")))


def test_a_time_beyond_the_calendar_names_its_field(filled: LedgerClient) -> None:
    request = ledger_pb2.ListReceiptsRequest()
    request.start_time.seconds = 10**15
    with pytest.raises(InvalidArgument) as caught:
        filled.connection.call(LedgerServiceStub(filled.connection.channel).ListReceipts, request, 10)
    assert caught.value.fields == ("start_time",)


def test_a_commitment_that_is_none_names_its_field(filled: LedgerClient) -> None:
    for text in ("", "sha256:", receipt(3).prompt.commitment.upper(), BASE):
        with pytest.raises(InvalidArgument, check=lambda error: error.fields == ("commitment",)):
            list(filled.receipts(ReceiptFilter(commitment=text)))


def test_a_token_of_another_list_is_refused(filled: LedgerClient) -> None:
    stub = LedgerServiceStub(filled.connection.channel)
    token = stub.ListReceipts(ledger_pb2.ListReceiptsRequest(page_size=2)).next_page_token
    for other in ({"prove_complete": True}, {"method": "x"}):
        request = ledger_pb2.ListReceiptsRequest(page_size=2, page_token=token, **other)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, check=lambda error: error.fields == ("page_token",)):
            filled.connection.call(stub.ListReceipts, request, 10)


def test_one_multi_proof_is_smaller_than_a_proof_for_each(filled: LedgerClient) -> None:
    (page,) = filled.receipt_pages(ReceiptFilter(max_index=5))
    singly = sum(len(filled.inclusion_proof(row.index).inclusion_proof.hashes) for row in page.receipts)
    assert (len(page.receipts), len(page.hashes)) == (6, 2)
    assert singly > 10 * len(page.hashes)


def test_a_complete_page_counts_all_entries_and_shows_those_that_are_no_match(filled: LedgerClient) -> None:
    pages = list(filled.receipt_pages(ReceiptFilter(tenant="other", min_index=1), page_size=4, complete=True))
    assert [(page.start, page.end, len(page.receipts), len(page.others)) for page in pages] == [
        (1, 5, 1, 3),
        (5, 9, 0, 4),
        (9, 10, 1, 0),
    ]

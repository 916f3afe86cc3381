"""EraseContent over the wire: who may, what is gone, and what still holds."""

from pathlib import Path

import pytest

from ledger.audit.log_verification import verify_log
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.receipt_filter import ReceiptFilter
from services.client import LedgerClient
from services.client.errors import AlreadyExists, InvalidArgument, PermissionDenied, Unauthenticated
from services.client.ledger.verified import VerifiedLedger
from services.ledger.settings import LedgerSettings
from tests.integration.ledger_service.test_appending import wire_content
from tests.unit.ledger.builders import content, erasure, receipt_id, signed, signed_receipt


def fill(ledger: LedgerClient) -> None:
    for number in range(3):
        ledger.append(signed_receipt(number), wire_content(number))


def test_an_erasure_takes_content_and_salts_and_leaves_every_proof(
    ledger: LedgerClient, operator: LedgerClient, auditor: LedgerClient, settings: LedgerSettings, tmp_path: Path
) -> None:
    fill(ledger)
    trusted = TrustedKeys.load(settings.trusted_directory)
    before = VerifiedLedger(ledger, trusted)
    rows = list(before.receipts(ReceiptFilter(), complete=True))
    erased = VerifiedLedger(operator, trusted).erase(signed(erasure(1, 1)))
    assert erased.index == 3
    assert [_kept(auditor, number) for number in range(3)] == [True, False, True]
    assert not any(content(1).prompt_salt in path.read_bytes() for path in tmp_path.glob("ledger.sqlite3*"))
    # The same client, which remembers the head from before: everything that was proven still is.
    assert list(before.receipts(ReceiptFilter(), complete=True)) == rows
    report = verify_log((entry.entry for entry in ledger.watch(0)), ledger.checkpoint().note, trusted)
    assert (report.ok, report.kinds["erasure"]) == (True, 1)
    assert ledger.entry(3).kind == "erasure"


def _kept(auditor: LedgerClient, number: int) -> bool:
    return auditor.receipt(receipt_id(number), include_content=True).content is not None


def test_erasing_twice_is_one_entry_and_content_does_not_come_back(
    ledger: LedgerClient, operator: LedgerClient, auditor: LedgerClient
) -> None:
    fill(ledger)
    first = operator.erase(signed(erasure(1, 1)))
    assert operator.erase(signed(erasure(1, 1))).index == first.index
    assert ledger.append(signed_receipt(1), wire_content(1)).index == 1
    assert auditor.receipt(receipt_id(1), include_content=True).content is None
    assert ledger.checkpoint().tree_size == 4


def test_a_second_erasure_is_refused_and_named(
    ledger: LedgerClient, operator: LedgerClient, auditor: LedgerClient
) -> None:
    fill(ledger)
    assert operator.erase(signed(erasure(1, 1))).index == 3
    again = signed(erasure(1, 1, reason="another reason"))
    for call in (operator.erase, operator.append):
        with pytest.raises(AlreadyExists):
            call(again)
    assert operator.erase(signed(erasure(2, 2))).index == 4
    assert ledger.checkpoint().tree_size == 5


def test_what_became_of_content_is_said_to_everybody(ledger: LedgerClient, operator: LedgerClient) -> None:
    fill(ledger)
    ledger.append(signed_receipt(3))
    operator.erase(signed(erasure(1, 1)))
    told = [(found.content_state, found.erasure_index) for found in map(ledger.receipt, map(receipt_id, range(4)))]
    assert told == [("KEPT", None), ("ERASED", 4), ("KEPT", None), ("NEVER_GIVEN", None)]


def test_only_operators_erase(ledger: LedgerClient, auditor: LedgerClient) -> None:
    fill(ledger)
    for somebody in (ledger, auditor):
        with pytest.raises((PermissionDenied, Unauthenticated)):
            somebody.erase(signed(erasure(1, 1)))
        with pytest.raises(PermissionDenied):
            somebody.append(signed(erasure(1, 1)))
    assert _kept(auditor, 1)


@pytest.mark.parametrize(
    ("envelope", "why"),
    [
        (b"junk", "JSON"),
        (signed_receipt(0), "expected a kolm.erasure.v1 document, got a receipt"),
        (signed(erasure(0, 1)), "receipt_index"),
        (signed(erasure(99, 1)), "receipt_index"),
    ],
)
def test_anything_but_an_erasure_of_a_receipt_that_is_there_is_refused(
    ledger: LedgerClient, operator: LedgerClient, envelope: bytes, why: str
) -> None:
    fill(ledger)
    with pytest.raises(InvalidArgument, match=why) as caught:
        operator.erase(envelope)
    assert caught.value.fields == ("envelope",)
    assert ledger.checkpoint().tree_size == 3

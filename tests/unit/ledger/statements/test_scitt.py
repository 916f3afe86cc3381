"""COSE Receipts: what is signed, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledger.errors import ProofError, SignatureError
from ledger.statements.scitt import Place, check_cose_receipt, cose_receipt, transparent_statement
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.merkle import leaf_hash, node_hash
from tests.unit.ledger.builders import KEYS, ORIGIN, STRANGER, receipt_id

LEAVES = [leaf_hash(b"entry %d" % number) for number in range(2)]
PLACE = Place(b"entry 1", 1, (LEAVES[0],), Checkpoint(ORIGIN, 2, node_hash(*LEAVES)))
RECEIPT = cose_receipt(PLACE, receipt_id(1), KEYS["log"])
LOGS = (KEYS["log"].public,)


def test_the_same_place_gives_the_same_bytes_which_are_accepted() -> None:
    assert cose_receipt(PLACE, receipt_id(1), KEYS["log"]) == RECEIPT
    check_cose_receipt(RECEIPT, PLACE, receipt_id(1), (STRANGER.public, *LOGS))


@pytest.mark.parametrize(
    "wrong",
    [
        replace(PLACE, entry=b"entry 2"),
        replace(PLACE, index=0),
        replace(PLACE, tree=replace(PLACE.tree, root=bytes(32))),
        replace(PLACE, tree=replace(PLACE.tree, size=4)),
    ],
)
def test_nothing_is_signed_over_a_root_that_does_not_hold_the_entry(wrong: Place) -> None:
    with pytest.raises(ProofError):
        cose_receipt(wrong, receipt_id(1), KEYS["log"])
    with pytest.raises(ProofError):
        check_cose_receipt(RECEIPT, wrong, receipt_id(1), LOGS)


def test_another_subject_another_log_another_byte_are_refused() -> None:
    for data, subject, logs in (
        (RECEIPT, receipt_id(2), LOGS),
        (RECEIPT, receipt_id(1), (STRANGER.public,)),
        (RECEIPT, receipt_id(1), ()),
        (RECEIPT + b"\0", receipt_id(1), LOGS),
        (b"", receipt_id(1), LOGS),
    ):
        with pytest.raises(ProofError):
            check_cose_receipt(data, PLACE, subject, logs)
    with pytest.raises(SignatureError):
        check_cose_receipt(RECEIPT[:-1] + bytes([RECEIPT[-1] ^ 1]), PLACE, receipt_id(1), LOGS)


def test_a_statement_is_a_tagged_cose_sign1() -> None:
    statement = transparent_statement(b"entry 1", receipt_id(1), KEYS["receipts"], [RECEIPT])
    assert statement[:2] == b"\xd2\x84"  # tag 18, an array of four
    assert RECEIPT in statement

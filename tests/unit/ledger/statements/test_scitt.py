"""COSE Receipts: their signatures, and refusals."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import FormatError, LedgerError, ProofError, SignatureError
from ledger.keys.ed25519 import PublicKey
from ledger.statements import cose
from ledger.statements.scitt import (
    Place,
    Statement,
    check_cose_receipt,
    cose_receipt,
    prove_cose_receipt,
    transparent_statement,
)
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.merkle import leaf_hash, node_hash
from tests.mutations import replace
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


def keys_of(origin: str) -> tuple[PublicKey, ...]:
    return LOGS if origin == ORIGIN else ()


def test_a_cose_receipt_proves_its_place_to_a_reader_with_only_the_keys() -> None:
    place = prove_cose_receipt(RECEIPT, b"entry 1", receipt_id(1), keys_of)
    assert (place.origin, place.index, place.size, place.log_key) == (ORIGIN, 1, 2, LOGS[0])
    for entry, about, keys in (
        (b"entry 2", receipt_id(1), keys_of),
        (b"entry 1", receipt_id(2), keys_of),
        (b"entry 1", receipt_id(1), lambda origin: ()),
    ):
        with pytest.raises(SignatureError):
            prove_cose_receipt(RECEIPT, entry, about, keys)


@pytest.mark.parametrize(
    ("size", "index"),
    [
        pytest.param(10**5000, 10**5000, id="more digits than a message takes"),
        pytest.param(2**100_000 + 1, 2**100_000, id="more bits than a walk takes"),
        (2**63, 1),
        (2, 2),
        (2, -1),
        (True, False),
    ],
)
def test_a_place_in_no_tree_is_refused_without_a_walk_to_its_root(size: int, index: int) -> None:
    proof = cose.encode([size, index, []])
    data = cose.message(cose.encode({15: {1: ORIGIN}}), {396: {-1: [proof]}}, None, bytes(64))
    with pytest.raises(FormatError):
        prove_cose_receipt(data, b"entry 1", receipt_id(1), keys_of)


def test_a_statement_is_read_back_and_its_issuer_found() -> None:
    statement = Statement.from_bytes(transparent_statement(b"entry 1", receipt_id(1), KEYS["receipts"], [RECEIPT]))
    assert (statement.entry, statement.receipts) == (b"entry 1", (RECEIPT,))
    assert statement.issuer(receipt_id(1), [STRANGER.public, KEYS["receipts"].public]) == KEYS["receipts"].public
    for about, key in ((receipt_id(2), KEYS["receipts"]), (receipt_id(1), STRANGER)):
        with pytest.raises(SignatureError):
            statement.issuer(about, [key.public])


@given(st.binary(max_size=60), st.integers(0, 400), st.binary(max_size=4))
def test_untrusted_bytes_raise_nothing_but_the_ledger_s_errors(junk: bytes, place: int, patch: bytes) -> None:
    whole = transparent_statement(b"entry 1", receipt_id(1), KEYS["receipts"], [RECEIPT])
    for data in (junk, b"\xd2\x84" + junk, whole[:place] + patch + whole[place + len(patch) :]):
        with suppress(LedgerError):
            Statement.from_bytes(data)
        with suppress(LedgerError):
            prove_cose_receipt(data, b"entry 1", receipt_id(1), keys_of)


def test_a_statement_is_a_tagged_cose_sign1() -> None:
    statement = transparent_statement(b"entry 1", receipt_id(1), KEYS["receipts"], [RECEIPT])
    assert statement[:2] == b"\xd2\x84"  # tag 18, an array of four
    assert RECEIPT in statement

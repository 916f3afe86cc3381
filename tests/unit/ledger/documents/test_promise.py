"""A promise: what is signed is what is read, and only by a key of role receipts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.documents.promise import (
    ANSWER_TYPE,
    MOST_CHOICES,
    PAYLOAD_TYPE,
    Promise,
    PromiseAnswer,
    kept_digest,
    open_answer,
    open_promise,
    promise_digest,
    read_promise,
    sign_answer,
    sign_promise,
)
from ledger.encoding.canonical import canonical
from ledger.encoding.text_forms import digest
from ledger.errors import FormatError, LedgerError, SignatureError
from ledger.keys.envelope import Envelope, sign
from tests.mutations import replace
from tests.unit.ledger.builders import KEYS, STRANGER, TRUSTED, at, foreign_receipt, promise_of, receipt

RECEIPT = receipt(0)
PROMISE = promise_of(RECEIPT)
SIGNED = sign_promise(PROMISE, KEYS["receipts"]).to_bytes()


def test_what_was_signed_is_read() -> None:
    assert open_promise(SIGNED, TRUSTED) == PROMISE
    nonce = replace(PROMISE, nonce="mine")
    assert open_promise(sign_promise(nonce, KEYS["receipts"]).to_bytes(), TRUSTED) == nonce


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("type", "kolm.receipt.v1"),
        ("promised_at", "yesterday"),
        ("due", at(-1)),
        ("tenant", 7),
        ("request_id", None),
        ("nonce", "n" * 129),
        ("base_cid", "sha256:00"),
        ("profile_cid", None),
        ("prompt", {"tokens": 0, "commitment": RECEIPT.prompt.commitment}),
        ("choices", 0),
        ("choices", MOST_CHOICES + 1),
        ("another", 1),
    ],
)
def test_a_wrong_member_is_named(field: str, value: Any) -> None:
    with pytest.raises(FormatError, match=field):
        Promise.from_document(PROMISE.to_document() | {field: value})


@pytest.mark.parametrize("field", list(PROMISE.to_document()))
def test_a_missing_member_is_named(field: str) -> None:
    document = PROMISE.to_document()
    del document[field]
    with pytest.raises(FormatError, match=field):
        Promise.from_document(document)


def test_who_may_sign() -> None:
    with pytest.raises(SignatureError, match="auditor"):
        sign_promise(PROMISE, KEYS["auditor"])
    payload = canonical(PROMISE.to_document())
    for key in (STRANGER, KEYS["auditor"]):
        with pytest.raises(SignatureError):
            open_promise(sign(payload, PAYLOAD_TYPE, key).to_bytes(), TRUSTED)


def test_what_was_changed_is_not_signed() -> None:
    envelope = Envelope.from_bytes(SIGNED)
    later = replace(envelope, payload=canonical(replace(PROMISE, due=at(7200)).to_document()))
    assert read_promise(later.to_bytes()).due == at(7200)
    with pytest.raises(SignatureError):
        open_promise(later.to_bytes(), TRUSTED)
    for signatures in ((), envelope.signatures * 2):
        with pytest.raises(LedgerError):
            open_promise(replace(envelope, signatures=signatures).to_bytes(), TRUSTED)


def test_a_receipt_is_no_promise() -> None:
    with pytest.raises(FormatError, match="payloadType"):
        read_promise(
            sign(canonical(RECEIPT.to_document()), "application/vnd.kolm.receipt.v1+json", KEYS["receipts"]).to_bytes()
        )


@given(st.binary(max_size=200) | st.integers(0, len(SIGNED) - 1).map(lambda at: SIGNED[:at] + b"}" + SIGNED[at + 1 :]))
def test_untrusted_bytes_raise_the_ledgers_own_errors_only(data: bytes) -> None:
    try:
        open_promise(data, TRUSTED)
    except LedgerError:
        pass
    else:
        assert data == SIGNED


@pytest.mark.parametrize(
    "other",
    [
        {"tenant": "other"},
        {"request_id": "other"},
        {"nonce": "mine"},
        {"base_cid": RECEIPT.tokenizer_cid},
        {"profile_cid": RECEIPT.tokenizer_cid},
        {"prompt": receipt(1).prompt},
        {"sampling": replace(RECEIPT.sampling, n=2, choice=1)},
    ],
    ids=str,
)
def test_another_receipt_does_not_keep_it(other: dict[str, Any]) -> None:
    assert PROMISE.covers(RECEIPT)
    assert not PROMISE.covers(replace(RECEIPT, **other))


@pytest.mark.parametrize("cached", [0, 2])
def test_a_receipt_that_names_cached_tokens_keeps_the_promise_made_before(cached: int) -> None:
    promised = foreign_receipt(0)
    promise, served = promise_of(promised), replace(promised, prompt=replace(promised.prompt, cached_tokens=cached))
    assert promise.covers(served)
    assert promise.digests() == (kept_digest(served),)


ANSWER = PromiseAnswer(promise_digest(SIGNED), 9, digest(b"root"), (3,), at(9000))


def test_an_answer_is_the_log_s_about_one_promise() -> None:
    data = sign_answer(ANSWER, KEYS["log"]).to_bytes()
    assert open_answer(data, SIGNED, TRUSTED) == ANSWER
    other = sign_promise(replace(PROMISE, nonce="another"), KEYS["receipts"]).to_bytes()
    with pytest.raises(FormatError):
        open_answer(data, other, TRUSTED)
    with pytest.raises(FormatError, match="payloadType"):
        open_answer(SIGNED, SIGNED, TRUSTED)
    with pytest.raises(SignatureError):
        sign_answer(ANSWER, KEYS["receipts"])
    forged = sign(canonical(ANSWER.to_document()), ANSWER_TYPE, KEYS["receipts"])
    with pytest.raises(SignatureError):
        open_answer(forged.to_bytes(), SIGNED, TRUSTED)


@pytest.mark.parametrize("entries", [[], [True], [-1], ["3"], [None] * 1025, None])
def test_an_answer_names_indexes_or_nothing(entries: object) -> None:
    with pytest.raises(FormatError, match="entries"):
        PromiseAnswer.from_document(ANSWER.to_document() | {"entries": entries})


def test_a_promise_is_broken_by_what_was_missing_once_it_was_due() -> None:
    missing = replace(ANSWER, entries=(None,))
    assert [each.breaks(PROMISE) for each in (missing, replace(missing, answered_at=PROMISE.due))] == [True, False]
    assert not replace(ANSWER, entries=(3,)).breaks(PROMISE)

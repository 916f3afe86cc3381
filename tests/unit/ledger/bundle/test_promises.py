"""A verifier's promise, held against a bundle: kept, open, overdue by the verifier's clock, or proof of omission."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ledger.audit.fulfilment import Fulfilment
from ledger.bundle.report import BundleReport, Trust
from ledger.documents.promise import read_promise, sign_promise
from ledger.documents.signed_document import sign_document
from ledger.encoding.text_forms import parse_timestamp
from ledger.keys.ed25519 import SigningKey
from ledger.keys.note import Note
from ledger.witness.cosignature import cosign
from tests.keys import seeded_key
from tests.mutations import replace
from tests.unit.ledger.builders import KEYS, TRUSTED, at, promise_of, receipt
from tests.unit.ledger.bundle.test_verification import GOOD, TRUST, chosen_by_a_liar, failed, judged
from tests.vectors.make_bundles import (
    COSIGNED_AT,
    POLICY,
    SUCCESSOR,
    WITNESS_KEYS,
    WITNESSES,
    checkpoint,
    exported,
    log_of,
)

LAST_WORD = 103  # seconds after the first document: the newest date of any document of the bundle
COSIGNED = 1200
"""Seconds after the first document, by the witnesses' clock."""


def promised(number: int, due: float = 3600, key: SigningKey = KEYS["receipts"], **changes: Any) -> bytes:
    """A promise of `receipt(number)`, which is in the bundle for the numbers 0 to 3."""
    return sign_promise(promise_of(receipt(number), due=at(due), **changes), key).to_bytes()


def holding(*promises: bytes, now: float = 7200) -> Trust:
    """A verifier with these promises, `now` seconds after the first document."""
    clock = parse_timestamp(at(0)) + timedelta(seconds=now)
    return replace(TRUST, promises=promises, now=clock, as_of=clock)


def unwitnessed() -> dict[str, bytes]:
    return exported(log_of(), checkpoint=checkpoint(log_of(), 14, ""))


def found(report: BundleReport) -> tuple[int, list[str]]:
    return failed(report), [each.state for each in report.promises]


def test_a_promise_is_kept_by_the_receipt_of_its_request(tmp_path: Path) -> None:
    report = judged(GOOD, tmp_path, holding(promised(0), promised(1)))
    assert found(report) == (0, ["KEPT", "KEPT"])
    assert report.checks[15].detail == "2 kept, by entries 2, 3"
    assert [each.found.entries for each in report.promises] == [{0: 2}, {0: 3}]


def test_by_a_successor_s_key_too(tmp_path: Path) -> None:
    assert found(judged(GOOD, tmp_path / "new", holding(promised(3, key=SUCCESSOR)))) == (0, ["KEPT"])
    stranger = seeded_key(b"\x55" * 32, "receipts")
    assert failed(judged(GOOD, tmp_path / "stranger", holding(promised(0, key=stranger)))) == 16


@pytest.mark.parametrize(
    ("due", "now", "state"),
    [
        (1199, 1100, "BROKEN"),  # the witnesses' clock counts, not only the verifier's
        (1201, 1202, "OVERDUE"),
        (1201, 1200, "OPEN"),
    ],
)
def test_a_receipt_that_was_left_out(tmp_path: Path, due: float, now: float, state: str) -> None:
    report = judged(GOOD, tmp_path, holding(promised(7, due), now=now))
    assert found(report) == (0 if state == "OPEN" else 16, [state])


def test_without_witnesses_the_log_s_own_dates_prove_an_omission(tmp_path: Path) -> None:
    """A ledger takes documents that are dated 300 s ahead of its clock: so much later it may have been read."""
    alone = replace(holding(now=LAST_WORD), policy=None)
    for due, state in ((LAST_WORD - 301, "BROKEN"), (LAST_WORD - 299, "OVERDUE"), (LAST_WORD + 1, "OPEN")):
        promise = promised(7, due, promised_at=at(-3600))
        report = judged(unwitnessed(), tmp_path / state, replace(alone, promises=(promise,)))
        assert report.promises[0].state == state, report.problem


def test_the_log_s_clock_convicts_no_operator_for_promises_due_after_its_end(tmp_path: Path) -> None:
    trust = replace(holding(promised(7, COSIGNED + 1)), as_of=None)
    assert found(judged(GOOD, tmp_path, trust)) == (0, ["OPEN"])


@pytest.mark.parametrize(("quorum", "promptly"), [("two-of-three", "ab"), ("none", "")])
def test_a_witness_that_dates_ahead_convicts_no_operator(tmp_path: Path, quorum: str, promptly: str) -> None:
    note = Note.from_bytes(checkpoint(log_of(), 14, promptly))
    ahead = cosign(note.text, WITNESSES["c"].name, WITNESS_KEYS["c"], COSIGNED_AT + 100 * 86_400)
    files = exported(log_of(), checkpoint=replace(note, signatures=(*note.signatures, ahead)).to_bytes())
    trust = replace(holding(promised(7, COSIGNED + 7000)), as_of=None, policy=replace(POLICY, quorum=quorum))
    assert found(judged(files, tmp_path, trust)) == (0, ["OPEN"])


def test_one_of_two_promised_choices_is_not_enough(tmp_path: Path) -> None:
    report = judged(GOOD, tmp_path, holding(promised(0, 60, choices=2)))
    assert found(report) == (16, ["BROKEN"])
    assert len(report.promises[0].found.missing) == 1


def test_chosen_entries_prove_that_a_promise_was_kept_and_never_that_it_was_not(tmp_path: Path) -> None:
    chosen = chosen_by_a_liar([2, 4], log_of())
    assert found(judged(chosen, tmp_path / "kept", holding(promised(0, 60)))) == (0, ["KEPT"])
    report = judged(chosen, tmp_path / "missing", holding(promised(1, 60)))
    assert found(report) == (16, ["OVERDUE"])
    assert found(judged(chosen, tmp_path / "open", holding(promised(1, 60), now=30))) == (0, ["OPEN"])


def test_a_receipt_without_an_output_keeps_a_promise_and_is_told(tmp_path: Path) -> None:
    plain = receipt(0)
    ended = replace(plain, output=replace(plain.output, finish_reason="error", stop_reason=None))
    log = log_of({2: sign_document(ended, KEYS["receipts"])})
    trust = replace(holding(promised(0)), policy=None)
    report = judged(exported(log, checkpoint=checkpoint(log, 14, "")), tmp_path, trust)
    assert report.promises[0].state == "KEPT"
    assert report.promises[0].found.finish_reasons == {0: "error"}


def test_the_newest_receipt_of_a_choice_shows_whether_it_has_an_output() -> None:
    whole, found = receipt(0), Fulfilment(read_promise(promised(0)))
    lost = replace(whole, output=replace(whole.output, finish_reason="error", tokens=0))
    for index, (each, reason, empty) in enumerate([(lost, "error", [0]), (whole, "stop", []), (lost, "error", [0])]):
        found.observe(index, each)
        assert (found.entries, found.finish_reasons, found.without_output) == ({0: index}, {0: reason}, empty)


def test_no_promise_is_checked_unless_it_was_given(tmp_path: Path) -> None:
    check = judged(GOOD, tmp_path, Trust(TRUSTED)).checks[15]
    assert (check.passed, check.detail) == (None, "no promise was given")

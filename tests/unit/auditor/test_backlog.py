"""What is still to be done follows from the log alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.document import sign_document
from ledger.halt import Scope
from ledger.keys import SigningKey
from services.auditor.errors import BrokenLog
from services.auditor.sampling import is_sampled
from tests.unit.auditor.logs import entries, folded, root
from tests.unit.ledger.builders import BASE, SCOPE, halt, receipt, resume, verdict


def indexes(log: list[bytes], rate: float = 1.0) -> list[int]:
    return [due.index for due in folded(log, rate).due()]


def test_receipts_are_due_until_a_verdict_names_them() -> None:
    log = entries(receipt(0), receipt(1), verdict(0, 0), receipt(2))
    assert indexes(log) == [1, 3]


@pytest.mark.parametrize("outcome", ["DEVIATION", "UNREPLAYABLE"])
def test_a_verdict_of_any_outcome_settles_its_receipt(outcome: str) -> None:
    assert indexes(entries(receipt(0), verdict(0, 0, outcome))) == []


def test_at_rate_zero_nothing_is_due() -> None:
    assert indexes(entries(receipt(0), receipt(1)), rate=0.0) == []


@given(rate=st.floats(0.01, 0.99), count=st.integers(1, 12))
@settings(max_examples=25, deadline=None)
def test_what_is_due_is_what_anybody_computes_from_the_log(rate: float, count: int) -> None:
    log = entries(*(receipt(number) for number in range(count)))
    expected = [index for index in range(count - 1) if is_sampled(root(log[: index + 2]), index, rate)]
    assert indexes(log, rate) == expected
    assert folded(log, rate).undecided == 1


def test_how_a_receipt_was_drawn_is_written_down() -> None:
    log = entries(*(receipt(number) for number in range(30)))
    due = folded(log, 0.5).due()[0]
    assert due.draw == f"drawn at rate 0.5 by the root over {due.index + 2} entries"
    assert folded(log).due()[0].draw is None


def test_a_receipt_that_says_itself_that_it_deviated_is_due_at_any_rate() -> None:
    confession = replace(receipt(0).spec_decode, verified_identical_to_off=False)
    assert indexes(entries(receipt(0, spec_decode=confession), receipt(1)), rate=0.0) == [0]


def test_a_deviation_asks_for_a_halt_until_one_stands_after_its_receipt() -> None:
    log = entries(receipt(0), verdict(0, 0, "DEVIATION"))
    backlog = folded(log)
    assert [index for index, _ in backlog.deviations()] == [1]
    assert backlog.needs_halt(SCOPE, 0)
    answered = folded(entries(receipt(0), verdict(0, 0, "DEVIATION"), halt(1)))
    assert not answered.needs_halt(SCOPE, 0)
    assert answered.needs_halt(Scope(BASE, "eagle3"), 0)


def test_old_evidence_does_not_undo_a_resume_and_new_evidence_does() -> None:
    log = entries(
        receipt(0), receipt(1), verdict(0, 0, "DEVIATION"), halt(2), resume(3), receipt(2), verdict(1, 1, "DEVIATION")
    )
    backlog = folded(log)
    assert not backlog.needs_halt(SCOPE, 1)
    assert backlog.needs_halt(SCOPE, 5)


def test_a_verdict_by_a_stranger_settles_nothing() -> None:
    stranger = SigningKey.from_seed(b"\x09" * 32, "auditor")
    forged = sign_document(verdict(0, 0), stranger).to_bytes()
    assert indexes(entries(receipt(0), forged)) == [0]


def test_an_entry_that_does_not_follow_is_a_broken_log() -> None:
    log = entries(receipt(0), receipt(1))
    backlog = folded(log[:1])
    with pytest.raises(BrokenLog, match="entry 1"):
        backlog.observe(entries(receipt(2), receipt(3))[1])
    with pytest.raises(BrokenLog, match="entry 1"):
        backlog.observe(log[0])
    with pytest.raises(BrokenLog, match="entry 1"):
        backlog.observe(b"{}")
    backlog.observe(log[1])
    assert (backlog.position, backlog.root) == (2, root(log))

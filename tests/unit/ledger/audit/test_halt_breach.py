"""Receipts in halted scopes are found by index, epoch and time."""

from typing import Any

import pytest

from ledger.audit.halt_breach import Breach, HaltWatch
from ledger.audit.log_clock import Moment
from ledger.documents.halt import Halt, Resume, Scope, scopes_of
from ledger.documents.signed_document import Document
from ledger.encoding.text_forms import cid
from tests.mutations import replace
from tests.unit.ledger.builders import BASE, SCOPE, at, draw, receipt, verdict

HALTED, RESUMED = 1000, 5000


def breaches(*documents: Document) -> list[Breach]:
    watch = HaltWatch()
    for index, document in enumerate(documents):
        watch.observe(index, document, Moment.of(document))
    return watch.breaches


def halt(scope: Scope = SCOPE) -> Halt:
    return Halt(scope, 0, "it deviates", at(HALTED))


def resume() -> Resume:
    return Resume(SCOPE, 0, "repaired", at(RESUMED))


def served(second: int, epoch: int, **changes: Any) -> Document:
    return receipt(0, issued_at=at(second), halt_epoch=epoch, **changes)


def test_a_service_that_knew_of_the_halt_is_found_whatever_its_clock_says() -> None:
    for second in (0, HALTED, 3 * RESUMED):
        assert breaches(halt(), served(second, 1)) == [Breach(1, 0, knew=True)]


def test_a_service_that_had_not_heard_is_found_once_it_should_have() -> None:
    assert breaches(halt(), served(HALTED + 300, 0)) == []
    assert breaches(halt(), served(HALTED + 301, 0)) == [Breach(1, 0, knew=False)]


def test_what_was_served_before_the_halt_and_appended_after_it_is_in_order() -> None:
    assert breaches(halt(), served(HALTED - 10, 0)) == []
    assert breaches(served(HALTED + 900, 0), halt()) == []


def test_a_receipt_kept_back_until_the_resume_is_found_by_its_time() -> None:
    assert breaches(halt(), resume(), served(RESUMED - 301, 1)) == [Breach(2, 0, knew=True)]
    assert breaches(halt(), resume(), served(RESUMED - 301, 0)) == [Breach(2, 0, knew=False)]
    assert breaches(halt(), resume(), served(RESUMED - 300, 1)) == []  # the clocks may differ by as much
    assert breaches(halt(), resume(), served(RESUMED + 1, 1)) == []


@pytest.mark.parametrize("witness", [verdict(9, 9, replayed_at=at(RESUMED)), draw(3, bytes(32), RESUMED), halt()])
def test_a_resume_that_is_dated_early_hides_nothing_that_the_auditor_has_lived_through(witness: Document) -> None:
    early = Resume(SCOPE, 0, "repaired", at(HALTED))
    second = replace(witness, issued_at=at(RESUMED)) if isinstance(witness, Halt) else witness
    kept_back = served(RESUMED - 301, 0)
    assert breaches(halt(), early, kept_back) == []  # no clock shows that it is early
    (found,) = breaches(halt(), second, early, kept_back)
    assert (found.halt_index, found.knew) == (0, False)


def test_the_second_halt_of_a_scope_is_one_of_its_own() -> None:
    assert breaches(halt(), resume(), halt(), served(RESUMED + 1, 1)) == [Breach(3, 2, knew=False)]
    assert breaches(halt(), resume(), halt(), served(RESUMED + 1, 2)) == [Breach(3, 2, knew=True)]


@pytest.mark.parametrize(
    "changes",
    [
        {"spec_decode": replace(receipt().spec_decode, method="off")},
        {"spec_decode": replace(receipt().spec_decode, method="rest")},
        {"base_cid": "cidv1:sha256:" + "a" * 64},
    ],
    ids=["with speculation off", "by another method", "on another base"],
)
def test_what_the_halt_does_not_cover_is_in_order(changes: dict[str, Any]) -> None:
    assert breaches(halt(), served(HALTED + 1000, 1, **changes)) == []


def moved(**passes: int) -> dict[str, Any]:
    block = receipt(0).spec_decode
    passes_by_method = dict(passes)
    return {"spec_decode": replace(block, method="draft", head_cid=None, passes_by_method=passes_by_method)}


def test_a_receipt_that_moved_into_what_was_halted_is_found() -> None:
    assert breaches(halt(), served(HALTED + 1000, 1, **moved(draft=5, lookahead=1, off=2))) == [Breach(1, 0, True)]
    assert breaches(halt(), served(HALTED + 1000, 1, **moved(draft=5, rest=1, off=2))) == []


def test_the_scopes_of_an_output_are_those_of_every_method_that_drafted() -> None:
    head = cid(b"head")
    passes = {"draft": 3, "eagle3": 9, "off": 4, "rest": 1}
    assert scopes_of(BASE, "eagle3", head, passes) == (
        Scope(BASE, "eagle3", head), Scope(BASE, "draft"), Scope(BASE, "rest"),
    )  # fmt: skip
    assert scopes_of(BASE, "draft", None, passes)[1] == Scope(BASE, "eagle3")
    assert scopes_of(BASE, "lookahead", None) == (Scope(BASE, "lookahead"),)


def test_a_breach_says_what_it_is() -> None:
    assert SCOPE.base_cid == BASE
    knowing, unaware = str(Breach(7, 3, True)), str(Breach(7, 3, False))
    assert all(part in knowing and part in unaware for part in ("entry 7", "entry 3"))
    assert knowing != unaware

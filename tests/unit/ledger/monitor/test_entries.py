"""A monitor reports entries that are not allowed at their index, and missing verdicts and receipts."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from ledger.audit.log_verification import verify_log
from ledger.documents.audit import ReferencePass, ReferenceThresholds
from ledger.documents.halt import Scope
from ledger.documents.key_entry import KeyEntry
from ledger.documents.promise import Promise, sign_promise
from ledger.documents.signed_document import sign_document, sign_rotation
from ledger.encoding.text_forms import cid
from ledger.keys.trusted_keys import TrustedKeys
from ledger.monitor import finding as kinds
from ledger.monitor.judgement import Limits, Promised
from ledger.monitor.memory import MonitorMemory
from ledger.monitor.monitor import Monitor
from tests.keys import seeded_key
from tests.mutations import replace
from tests.unit.ledger.builders import (
    BASE,
    KEYS,
    OFF,
    START,
    at,
    draw,
    engine_profile,
    expiry,
    foreign_receipt,
    halt,
    of_a_later_version,
    policy,
    promise_of,
    publication,
    receipt,
    resume,
    retention,
    verdict,
)
from tests.unit.ledger.monitor.listed_log import NOW, ListedLog, owed, told
from tests.vectors.make_log import signed_claim

OTHER = cid(b"another base")


def wrong_chain(log: ListedLog) -> None:
    log.entries.append(log.entries[-1])


def second_receipt(log: ListedLog) -> None:
    log.append(receipt(0))


def unsigned(log: ListedLog) -> None:
    log.append(sign_document(receipt(20), seeded_key(b"\x0a" * 32, "receipts")).to_bytes())


def halt_of_nothing(log: ListedLog) -> None:
    log.append(halt(1))


def posing_as_off(log: ListedLog) -> None:
    log.append(signed_claim(20, method="off", passes_by_method={"eagle3": 1}).to_bytes())


def boasting(log: ListedLog) -> None:
    log.append(signed_claim(20, acceptance_rate=0.99).to_bytes())


def same_of_our_own(log: ListedLog) -> None:
    log.append(verdict(1, 0, "SAME", verification="again", replayed_by="engine"))


def exact_of_another_engine(log: ListedLog) -> None:
    at = log.append(engine_profile(), foreign_receipt(20))
    log.append(verdict(at, 20))


@pytest.mark.parametrize(
    "harm",
    [
        wrong_chain, second_receipt, unsigned, halt_of_nothing, posing_as_off, boasting, same_of_our_own,
        exact_of_another_engine,
    ],
)  # fmt: skip
def test_an_entry_that_may_not_stand_there_is_told_as_long_as_it_stands(
    memory: MonitorMemory, harm: Callable[[ListedLog], None]
) -> None:
    log = owed(3)
    assert told(log, memory) == []
    harm(log)
    log.append(receipt(40))
    for _ in range(2):
        assert told(log, memory) == [kinds.INVALID]


def test_a_deviation_stands_until_operators_have_resumed(memory: MonitorMemory) -> None:
    log = owed(3)
    log.append(verdict(1, 0, "DEVIATION"))
    assert told(log, memory) == [kinds.DEVIATION]
    log.append(halt(4))
    assert told(log, memory) == [kinds.DEVIATION]
    assert told(log, memory, since=5) == []
    log.append(verdict(2, 1, "DEVIATION"))  # in the scope that is halted already
    assert told(log, memory) == [kinds.DEVIATION]
    log.append(resume(5))
    assert told(log, memory) == []
    log.append(verdict(3, 2, "DEVIATION"))  # of a receipt before the halt that was resumed
    assert told(log, memory) == []


def test_no_resume_ends_a_deviation_with_speculation_off(memory: MonitorMemory) -> None:
    log = owed(3)
    at = log.append(receipt(20, spec_decode=OFF))
    log.append(verdict(at, 20, "DEVIATION"), verdict(1, 0, "DEVIATION"))
    log.append(halt(at + 2))
    log.append(resume(at + 3))
    assert told(log, memory) == [kinds.DEVIATION]
    assert told(log, memory, since=at + 2) == []


def test_a_deviation_stands_until_each_of_its_methods_was_halted_and_resumed(memory: MonitorMemory) -> None:
    rest, both = Scope(BASE, "rest"), {"lookahead": 1, "rest": 1}
    passes: dict[str, Any] = {"target_passes": 2, "mean_acceptance_length": 1.0, "passes_by_method": both}
    block = replace(receipt(0).spec_decode, tokens_accepted=0, acceptance_rate=0.0, **passes)
    log = ListedLog()
    log.append(receipt(0), receipt(1, spec_decode=block), verdict(0, 0, "DEVIATION"), halt(2))
    log.append(verdict(1, 1, "DEVIATION"), resume(3))  # the halt of the other method has not arrived yet
    assert told(log, memory) == told(log, memory, since=4) == [kinds.DEVIATION]
    log.append(halt(4, rest))
    assert told(log, memory, since=4) == [kinds.DEVIATION]
    log.append(resume(6, rest))
    assert told(log, memory) == []


def test_an_output_that_is_not_of_the_weights_is_told_and_no_resume_ends_it(memory: MonitorMemory) -> None:
    log = ListedLog()
    log.append(
        replace(policy(1.0), reference=ReferenceThresholds(0.1, 1.0, 4.0, 20.0)), engine_profile(), foreign_receipt(0)
    )
    seen = {"verification": "reference", "replayed_by": "auditor"}
    log.append(verdict(2, 0, "CONSISTENT", **seen, reference=ReferencePass(BASE, 0.0, 0.5, 1)))
    assert told(log, memory) == []
    log.append(verdict(2, 0, "CONSISTENT", **seen, reference=ReferencePass(BASE, 0.0, 1.5, 1)))  # beyond the thresholds
    assert told(log, memory) == [kinds.INCONSISTENT]
    log.append(verdict(2, 0, "INCONSISTENT", **seen, reference=ReferencePass(BASE, 0.5, 1.5, 1)))
    assert told(log, memory) == [kinds.INCONSISTENT]
    assert told(log, memory, since=6) == []


@pytest.mark.parametrize("outcome", ["UNSTABLE", "UNCHECKED"])
def test_what_could_not_be_checked_of_another_engine_is_no_pass(outcome: str, memory: MonitorMemory) -> None:
    log = ListedLog()
    by = {"verification": "again", "replayed_by": "engine"} if outcome == "UNSTABLE" else {"reason": "no means"}
    log.append(policy(), engine_profile(), foreign_receipt(0), verdict(2, 0, outcome, **by))
    assert told(log, memory) == [kinds.UNREPLAYABLE]


def test_serving_in_a_halted_scope_is_told(memory: MonitorMemory) -> None:
    log = owed(3)
    log.append(verdict(1, 0, "DEVIATION"), halt(4), receipt(210, halt_epoch=1))
    assert told(log, memory) == [kinds.DEVIATION, kinds.DEFIED]
    assert told(log, memory, since=5) == [kinds.DEFIED]
    assert told(log, memory, since=7) == []


def test_what_is_due_is_told_by_the_monitors_clock(memory: MonitorMemory) -> None:
    log = owed(2)
    log.append(verdict(1, 0))
    due = START + timedelta(seconds=601)
    assert told(log, memory, due) == []
    late = due + timedelta(seconds=1)
    assert told(log, memory, late) == [kinds.OVERDUE]
    assert told(log, memory, late, lag=timedelta(seconds=2)) == []
    assert told(log, memory, late, since=3) == []
    log.append(verdict(2, 1, replayed_at=at(700)))
    assert told(log, memory, late) == [kinds.LATE]
    log.append(receipt(9))
    assert told(log, memory, late) == [kinds.LATE]
    assert told(log, memory, late, since=3) == []


def test_a_document_that_is_dated_ahead_is_told_and_the_log_is_in_order(memory: MonitorMemory) -> None:
    log = owed(1)
    log.append(verdict(1, 0), receipt(9, issued_at=at(5000)), verdict(3, 9, replayed_at=at(5000)))
    first = START + timedelta(seconds=4699)
    assert told(log, memory, first) == [kinds.DATED_AHEAD]
    assert told(log, memory, START + timedelta(days=2)) == [kinds.DATED_AHEAD]  # this monitor knows that it was
    assert told(log, memory, first, since=4) == [kinds.DATED_AHEAD]
    assert told(log, memory, first, since=5) == []


def test_a_draw_over_another_log_is_told(memory: MonitorMemory) -> None:
    log = owed(3, rate=0.5)
    log.append(draw(3, b"\x01" * 32))
    assert told(log, memory) == [kinds.VOID_DRAW]


def test_unreplayable_is_counted_against_a_limit(memory: MonitorMemory) -> None:
    log = owed(3)
    log.append(verdict(1, 0, "UNREPLAYABLE"), verdict(2, 1, "UNREPLAYABLE"))
    assert told(log, memory, START) == [kinds.UNREPLAYABLE]
    assert told(log, memory, START, max_unreplayable=2) == []
    assert told(log, memory, START, max_unreplayable=1, since=2) == []
    log.append(verdict(1, 0), verdict(2, 1))
    assert told(log, memory, START) == []


def test_a_head_that_was_published_for_another_base_is_told(memory: MonitorMemory) -> None:
    block = replace(receipt(1).spec_decode, method="eagle3", head_cid=cid(b"head"))
    log = owed(0)
    log.append(publication(), receipt(1, spec_decode=block), publication(name="again"))
    assert told(log, memory) == []
    log.append(publication(base_cid=OTHER), receipt(2, spec_decode=block, base_cid=OTHER))
    assert told(log, memory) == told(log, memory, since=3) == [kinds.HEAD]
    log.append(receipt(3, spec_decode=block, base_cid=cid(b"a third base")))
    assert told(log, memory) == 2 * [kinds.HEAD]
    assert told(log, memory, since=6) == [kinds.HEAD]


def promise(number: int, choices: int = 1) -> Promise:
    return promise_of(receipt(number), due=at(300), choices=choices)


def test_a_promise_is_held_against_the_log(memory: MonitorMemory) -> None:
    log = ListedLog()
    log.append(*(receipt(number) for number in range(3)))
    mine = Promised("mine", sign_promise(promise(7), KEYS["receipts"]).to_bytes())
    kept = Promised("kept", sign_promise(promise(1), KEYS["receipts"]).to_bytes())
    early, late = START + timedelta(seconds=300), START + timedelta(seconds=301)
    assert told(log, memory, early, mine, kept) == []
    assert told(log, memory, late, mine, kept) == [kinds.PROMISE]
    assert told(log, memory, late, mine, kept, lag=timedelta(seconds=1)) == []
    two = Promised("two", sign_promise(promise(1, 2), KEYS["receipts"]).to_bytes())
    assert told(log, memory, late, two) == [kinds.PROMISE]  # one choice of it has come
    log.append(receipt(7))
    assert told(log, memory, late, mine, kept) == []
    forged = Promised("x", sign_promise(promise(1), seeded_key(b"\x0b" * 32, "receipts")).to_bytes())
    for bad in (forged, Promised("y", b"{}")):
        assert told(log, memory, early, bad) == [kinds.PROMISE]


def test_a_promise_is_not_judged_by_a_log_that_was_not_read_to_its_end(memory: MonitorMemory) -> None:
    log = owed(2)
    mine = Promised("mine", sign_promise(promise(7), KEYS["receipts"]).to_bytes())
    assert told(log, memory, NOW - timedelta(seconds=300), mine) == []
    log.append(receipt(7), verdict(1, 0), verdict(2, 1), receipt(8), verdict(5, 7), verdict(6, 8))
    log.entries = log.entries[:4]
    log.overlay["tile/entries/000.p/4"] = b"\x00"
    assert told(log, memory, START + timedelta(seconds=400), mine) == [kinds.UNPROVEN]


def test_expiries_are_held_against_the_policies_that_were_read_before(memory: MonitorMemory) -> None:
    log = ListedLog()
    log.append(retention(days=None, tenant="acme"), retention(days=90), retention(days=30), receipt(0))
    assert told(log, memory) == []
    over = START + timedelta(days=30, seconds=1)
    log.append(expiry(2, 4, except_tenants=("acme",)))
    assert told(log, memory, over) == []
    log.append(expiry(1, 4, except_tenants=("acme",)))
    assert told(log, memory, over) == [kinds.INVALID]


def test_an_expiry_that_is_dated_ahead_and_so_erases_too_early_is_told(memory: MonitorMemory) -> None:
    log = ListedLog()
    log.append(retention(days=30), receipt(0), expiry(0, 2))
    assert told(log, memory, START + timedelta(days=29)) == [kinds.DATED_AHEAD]


def test_an_auditor_that_contradicts_itself_is_told(memory: MonitorMemory) -> None:
    log = owed(2)
    log.append(verdict(1, 0, "DEVIATION"), verdict(2, 1), verdict(2, 1))
    assert told(log, memory) == [kinds.DEVIATION]
    log.append(verdict(1, 0, "UNREPLAYABLE"), verdict(1, 0))
    assert told(log, memory) == [kinds.DEVIATION, kinds.CONTRADICTION]
    assert told(log, memory) == [kinds.DEVIATION, kinds.CONTRADICTION]  # remembered
    assert told(log, memory, since=7) == [kinds.CONTRADICTION]
    assert told(log, memory, since=8) == []


def test_a_key_that_signed_before_it_was_introduced_is_told(memory: MonitorMemory) -> None:
    successor = seeded_key(b"\x32" * 32, "receipts")
    rotation = KeyEntry("receipts", successor.public, at(20), replaces=KEYS["receipts"].key_id)
    log = ListedLog()
    log.append(sign_document(receipt(0), successor).to_bytes())
    log.append(sign_rotation(rotation, successor, KEYS["receipts"]).to_bytes())
    trusted = TrustedKeys.of(*KEYS.values(), successor)
    report = verify_log(log.entries, None, trusted)
    assert (report.bad_index, [check.number for check in report.checks if check.passed is False]) == (1, [3])
    monitor = Monitor(memory, trusted, Limits())
    monitor.poll(log, START)
    assert [finding.kind for finding in monitor.findings((), START)] == [kinds.INVALID]


def test_a_kind_of_a_later_version_is_told_and_the_log_is_read_on(memory: MonitorMemory) -> None:
    log = ListedLog()
    log.append(receipt(0), of_a_later_version(), receipt(1), verdict(2, 1, "DEVIATION"))
    assert told(log, memory) == [kinds.DEVIATION, kinds.UNKNOWN]
    assert told(log, memory) == [kinds.DEVIATION, kinds.UNKNOWN]  # remembered
    assert told(log, memory, since=2) == [kinds.DEVIATION]

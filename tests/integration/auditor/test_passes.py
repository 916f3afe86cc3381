"""Audit passes over a real ledger: what they write, and that they can be killed anywhere."""

from __future__ import annotations

import pytest

from services.auditor.errors import ServiceAway
from services.auditor.following import follow
from tests.integration.auditor.house import House, InterruptedJournal, stopped_after
from tests.unit.ledger.builders import SCOPE, receipt_id


def outcomes(house: House) -> list[tuple[int, str]]:
    return [(verdict.receipt_index, verdict.outcome) for verdict in house.ledger.verdicts()]


def test_a_pass_gives_every_receipt_its_verdict_and_the_next_pass_has_nothing_to_do(house: House) -> None:
    indexes = [house.receive(number) for number in range(3)]
    auditor = house.auditor()
    assert [each.receipt_index for each in auditor.run_pass()] == indexes
    assert outcomes(house) == [(index, "EXACT") for index in indexes]
    assert list(auditor.run_pass()) == []
    assert len(house.replays.asked) == 3


def test_an_auditor_that_starts_again_knows_from_the_ledger_what_is_done(house: House) -> None:
    house.receive(0)
    first = house.receive(1)
    passes = house.auditor().run_pass()
    next(passes)
    passes.close()
    assert [each.receipt_index for each in house.auditor().run_pass()] == [first]
    assert len(outcomes(house)) == 2


def test_a_deviation_halts_its_method_once(house: House) -> None:
    house.receive(0)
    house.receive(1)
    house.replays.lies = {receipt_id(0), receipt_id(1)}
    first, second = house.auditor().run_pass()
    assert first.finding.outcome == second.finding.outcome == "DEVIATION"
    assert (first.halt_index, second.halt_index) == (first.verdict_index + 1, None)
    (halt,) = house.ledger.halt_state().halts
    assert (halt.scope.base_cid, halt.scope.method) == (SCOPE.base_cid, "lookahead")
    assert halt.verdict_index == first.verdict_index
    assert receipt_id(0) in halt.reason


def test_an_auditor_killed_between_a_verdict_and_its_halt_owes_the_halt(house: House) -> None:
    house.receive(0)
    house.replays.lies = {receipt_id(0)}
    with pytest.raises(KeyboardInterrupt):
        list(house.auditor(journal=InterruptedJournal).run_pass())
    assert house.ledger.halt_state().halts == ()
    assert list(house.auditor().run_pass()) == []
    (halt,) = house.ledger.halt_state().halts
    assert outcomes(house) == [(0, "DEVIATION")]
    assert halt.verdict_index == 1


def test_a_receipt_without_content_is_unreplayable_and_not_asked_about_again(house: House) -> None:
    house.receive(0, with_content=False)
    (examined,) = house.auditor().run_pass()
    assert (examined.finding.outcome, examined.finding.passed) == ("UNREPLAYABLE", False)
    assert list(house.auditor().run_pass()) == []
    assert house.replays.asked == []


def test_a_generation_service_that_stayed_away_condemns_only_where_that_was_asked_for(house: House) -> None:
    house.receive(0)
    house.replays.failure = ServiceAway("no replay within 600 s: away")
    with pytest.raises(ServiceAway):
        list(house.auditor(condemn_unavailable=False).run_pass())
    assert outcomes(house) == []
    (examined,) = house.auditor().run_pass()
    assert examined.finding.outcome == "UNREPLAYABLE"
    assert "stayed away" in (examined.finding.reason or "")


def test_at_a_rate_between_the_newest_receipt_waits_for_a_later_entry(house: House) -> None:
    for number in range(12):
        house.receive(number)
    auditor = house.auditor(rate=0.5)
    sampled = [each.receipt_index for each in auditor.run_pass()]
    assert 0 < len(sampled) < 12
    assert all("drawn at rate 0.5" in (verdict.reason or "") for verdict in house.ledger.verdicts())
    assert 11 not in sampled
    again = [each.receipt_index for each in house.auditor(rate=0.5).run_pass()]
    assert set(again) <= {11}  # its fate is open until the first verdict has followed it


def test_following_examines_what_arrives_until_it_is_stopped(house: House) -> None:
    for number in range(3):
        house.receive(number)
    stop, called = stopped_after(3)
    follow(house.auditor(), stop, 0.01, called)
    assert [outcome for _, outcome in outcomes(house)] == ["EXACT"] * 3

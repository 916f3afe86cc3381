"""Audit passes over a real ledger: what they write, and that they can be killed anywhere."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from ledger.audit.obligation_fold import fold_obligations
from ledger.documents.draw import Draw
from ledger.documents.signed_document import read_document
from ledger.documents.spec_decode import SpecDecode
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import TrustedKeys
from services.auditor.journal import Journal, Terms
from services.auditor.schedule import Schedule, open_database, sqlite_url
from services.auditor.serving import follow
from services.cli.jobs.audit_pass import examine
from services.client import LedgerClient
from services.client.errors import Unavailable
from tests.integration.auditor.deployment import Deployment, InterruptedJournal, OneHaltJournal, stopped_after
from tests.unit.ledger.builders import SCOPE, erasure, receipt, receipt_id, signed


def outcomes(deployment: Deployment) -> list[tuple[int, str]]:
    return [(verdict.receipt_index, verdict.outcome) for verdict in deployment.ledger.verdicts()]


def test_a_pass_gives_every_receipt_its_verdict_and_the_next_pass_has_nothing_to_do(deployment: Deployment) -> None:
    indexes = [deployment.receive(number) for number in range(3)]
    auditor = deployment.auditor()
    assert [each.receipt_index for each in auditor.run_pass()] == indexes
    assert outcomes(deployment) == [(index, "EXACT") for index in indexes]
    assert list(auditor.run_pass()) == []
    assert len(deployment.replays.asked) == 3


def test_an_auditor_that_starts_again_knows_from_the_ledger_what_is_done(deployment: Deployment) -> None:
    deployment.receive(0)
    first = deployment.receive(1)
    passes = deployment.auditor().run_pass()
    next(passes)
    passes.close()
    assert [each.receipt_index for each in deployment.auditor().run_pass()] == [first]
    assert len(outcomes(deployment)) == 2


def test_a_deviation_halts_its_method_once(deployment: Deployment) -> None:
    deployment.receive(0)
    deployment.receive(1)
    deployment.replays.lies = {receipt_id(0), receipt_id(1)}
    first, second = deployment.auditor().run_pass()
    assert first.finding.outcome == second.finding.outcome == "DEVIATION"
    assert (first.halt_index, second.halt_index) == (first.verdict_index + 1, None)
    (halt,) = deployment.ledger.halt_state().halts
    assert (halt.scope.base_cid, halt.scope.method) == (SCOPE.base_cid, "lookahead")
    assert halt.verdict_index == first.verdict_index
    assert receipt_id(0) in halt.reason


def moved(*methods: str) -> SpecDecode:
    """By lookahead at first, then by others too, a pass each."""
    passes = tuple((method, 1) for method in sorted(methods))
    return replace(
        receipt(0).spec_decode,
        tokens_accepted=0,
        acceptance_rate=0.0,
        target_passes=len(passes),
        mean_acceptance_length=2 / len(passes),
        passes_by_method=passes,
    )


def test_a_deviation_of_a_request_that_moved_halts_every_method_that_drafted(deployment: Deployment) -> None:
    deployment.receive(0, spec_decode=moved("draft", "lookahead"))
    deployment.receive(1, spec_decode=moved("draft", "rest"))
    deployment.replays.lies = {receipt_id(0), receipt_id(1)}
    first, second = deployment.auditor().run_pass()
    halts = deployment.ledger.halt_state().halts
    assert [(halt.scope.method, halt.verdict_index) for halt in halts] == [
        ("lookahead", first.verdict_index), ("draft", first.verdict_index), ("rest", second.verdict_index),
    ]  # fmt: skip
    assert (first.halt_index, second.halt_index) == (halts[0].halt_index, halts[2].halt_index)
    assert list(deployment.auditor().run_pass()) == []
    assert len(deployment.ledger.halt_state().halts) == 3


def test_an_auditor_killed_between_two_halts_of_a_verdict_owes_the_second(deployment: Deployment) -> None:
    deployment.receive(0, spec_decode=moved("draft", "lookahead"))
    deployment.replays.lies = {receipt_id(0)}
    with pytest.raises(KeyboardInterrupt):
        list(deployment.auditor(journal=OneHaltJournal).run_pass())
    assert [halt.scope.method for halt in deployment.ledger.halt_state().halts] == ["lookahead"]
    assert list(deployment.auditor().run_pass()) == []
    assert [halt.scope.method for halt in deployment.ledger.halt_state().halts] == ["lookahead", "draft"]


def test_an_auditor_killed_between_a_verdict_and_its_halt_owes_the_halt(deployment: Deployment) -> None:
    deployment.receive(0)
    deployment.replays.lies = {receipt_id(0)}
    with pytest.raises(KeyboardInterrupt):
        list(deployment.auditor(journal=InterruptedJournal).run_pass())
    assert deployment.ledger.halt_state().halts == ()
    assert list(deployment.auditor().run_pass()) == []
    (halt,) = deployment.ledger.halt_state().halts
    assert outcomes(deployment) == [(0, "DEVIATION")]
    assert halt.verdict_index == 1


def test_a_receipt_without_content_is_unreplayable_and_not_asked_about_again(deployment: Deployment) -> None:
    deployment.receive(0, with_content=False)
    (examined,) = deployment.auditor().run_pass()
    assert (examined.finding.outcome, examined.finding.passed) == ("UNREPLAYABLE", False)
    assert list(deployment.auditor().run_pass()) == []
    assert deployment.replays.asked == []


def test_a_receipt_whose_content_was_erased_is_unreplayable_and_says_by_which_entry(deployment: Deployment) -> None:
    auditor = deployment.auditor(Terms(1.0, 3600), spot_checks=0.0)
    list(auditor.run_pass())
    index = deployment.receive(0)
    with LedgerClient.connect(deployment.address) as operator:
        operator.erase(signed(erasure(index, 0)))
    (examined,) = auditor.run_pass()
    assert (examined.finding.outcome, examined.finding.passed) == ("UNREPLAYABLE", False)
    assert f"the content was erased by entry {index + 1}" in (examined.finding.reason or "")
    assert deployment.replays.asked == []


def kinds(deployment: Deployment) -> list[str]:
    with deployment.ledger.watch(0) as entries:
        return [entry.kind for entry in entries]


def test_what_an_auditor_promises_stands_in_the_log_once(deployment: Deployment) -> None:
    terms = Terms(rate=1.0, within_seconds=3600)
    list(deployment.auditor(terms, spot_checks=0.0).run_pass())
    list(deployment.auditor(terms, spot_checks=0.0).run_pass())
    assert kinds(deployment) == ["audit_policy"]
    list(deployment.auditor(Terms(rate=0.0, within_seconds=3600), spot_checks=0.0).run_pass())
    assert kinds(deployment) == ["audit_policy", "audit_policy"]


def test_an_auditor_that_promises_nothing_announces_nothing(deployment: Deployment) -> None:
    list(deployment.auditor(Terms(rate=0.0, within_seconds=3600), spot_checks=0.0).run_pass())
    assert kinds(deployment) == []


def test_a_draw_decides_and_what_it_names_gets_its_verdicts(deployment: Deployment) -> None:
    auditor = deployment.auditor(Terms(0.5, 3600), spot_checks=0.0)
    assert list(auditor.run_pass()) == []
    for number in range(16):
        deployment.receive(number)
    sampled = [each.receipt_index for each in auditor.run_pass()]
    with deployment.ledger.watch(0) as entries:
        done = fold_obligations([entry.entry for entry in entries], TrustedKeys.load(deployment.trusted))
    assert [one.index for one in done.judged()] == sampled
    assert (len(done.owed()), len(done.undrawn())) == (0, 0)
    assert done.completeness().kept
    assert all("drawn at rate 0.5 by entry 17" in (verdict.reason or "") for verdict in deployment.ledger.verdicts())
    assert kinds(deployment).count("draw") == 1
    assert list(auditor.run_pass()) == list(deployment.auditor(Terms(0.5, 3600), spot_checks=0.0).run_pass()) == []


def test_a_single_receipt_on_an_idle_log_is_drawn_about_too(deployment: Deployment) -> None:
    auditor = deployment.auditor(Terms(0.999999, 3600), spot_checks=0.0)
    list(auditor.run_pass())
    deployment.receive(0)
    assert [each.receipt_index for each in auditor.run_pass()] == [1]


class LosingJournal(Journal):
    """Its first draws get lost on the way to the ledger, or are refused: nobody can tell from here."""

    lost: ClassVar[list[Envelope]] = []

    def append(self, envelope: Envelope) -> int:
        if isinstance(read_document(envelope), Draw) and len(self.lost) < 3:
            self.lost.append(envelope)
            raise Unavailable("the connection broke")
        return super().append(envelope)


def test_a_ledger_that_loses_a_draw_gets_the_same_one_again_and_not_another_to_choose_from(
    deployment: Deployment,
) -> None:
    LosingJournal.lost.clear()
    list(deployment.auditor(Terms(0.5, 3600), spot_checks=0.0).run_pass())
    for number in range(8):
        deployment.receive(number)
        if number >= 5:
            with pytest.raises(Unavailable):  # a new auditor each time, with more in the log than the one before
                list(deployment.auditor(spot_checks=0.0, journal=LosingJournal).run_pass())
    list(deployment.auditor(spot_checks=0.0).run_pass())
    with deployment.ledger.watch(0) as entries:
        drawn = [entry.envelope for entry in entries if entry.kind == "draw"]
    assert {envelope.to_bytes() for envelope in LosingJournal.lost} == {drawn[0]}


def test_two_auditors_on_one_schedule_judge_every_receipt_once(deployment: Deployment) -> None:
    for number in range(6):
        deployment.receive(number)
    passes = [deployment.auditor().run_pass(), deployment.auditor().run_pass()]
    examined = [each.receipt_index for pair in zip(*passes, strict=True) for each in pair]
    assert sorted(examined) == [0, 1, 2, 3, 4, 5]
    assert len(outcomes(deployment)) == 6


def test_a_lost_schedule_loses_nothing(deployment: Deployment, tmp_path: Path) -> None:
    for number in range(3):
        deployment.receive(number)
    passes = deployment.auditor().run_pass()
    next(passes)
    with closing(Schedule(open_database(sqlite_url(tmp_path / "another.sqlite3")))) as empty:
        assert [each.receipt_index for each in deployment.auditor(schedule=empty).run_pass()] == [1, 2]
        assert empty.jobs() == ()


def test_what_another_auditor_has_in_hand_is_left_to_it(deployment: Deployment) -> None:
    deployment.receive(0)
    deployment.receive(1)
    deployment.schedule.lease([0])
    auditor = deployment.auditor()
    assert [each.receipt_index for each in auditor.run_pass()] == [1]
    assert auditor.remaining == (0,)


@pytest.mark.parametrize("it_ends", [False, True])
def test_a_pass_by_hand_waits_for_the_auditor_that_has_a_receipt(it_ends: bool, deployment: Deployment) -> None:
    deployment.receive(0)
    deployment.receive(1)
    lease = deployment.schedule.lease([0])
    assert lease is not None
    ours: list[int] = []
    looks: list[float] = []

    def look(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            deployment.schedule.give_back(lease)
            if not it_ends:
                list(deployment.auditor().run_pass())

    auditor = deployment.auditor()
    said: list[str] = []
    waited = examine(auditor, lambda each: ours.append(each.receipt_index), said.append, look)
    assert any(waited[0] in line for line in said)
    assert (list(waited), waited[0] != "", len(looks)) == ([0], True, 3)
    assert ours == ([1, 0] if it_ends else [1])
    assert (auditor.remaining, outcomes(deployment)) == ((), [(1, "EXACT"), (0, "EXACT")])


def test_a_pass_by_hand_does_not_wait_for_what_was_given_up(deployment: Deployment) -> None:
    deployment.receive(0)
    lease = deployment.schedule.lease([0])
    assert lease is not None
    deployment.schedule.put_back(lease, "out of memory")
    auditor = deployment.auditor()
    assert examine(auditor, pytest.fail, str, pytest.fail) == {}
    assert (auditor.remaining, auditor.in_other_hands()) == ((0,), {})


def test_a_receipt_that_ends_its_auditors_is_given_up_and_stays_without_a_verdict(deployment: Deployment) -> None:
    deployment.receive(0)
    deployment.receive(1)
    now = [0.0]
    engine = open_database(sqlite_url(deployment.trusted.parent / "auditor.sqlite3"))
    with closing(Schedule(engine, max_attempts=2, clock=lambda: now[0])) as schedule:
        deployment.replays.failure = RuntimeError("out of memory")
        for _ in range(2):
            with pytest.raises(RuntimeError):
                list(deployment.auditor(schedule=schedule).run_pass())
            now[0] += 1000.0
        deployment.replays.failure = None
        auditor = deployment.auditor(schedule=schedule)
        (job,) = [job for job in schedule.jobs() if job.state == "DEAD"]
        assert (job.receipt_index, job.attempts, job.error) == (0, 2, "RuntimeError: out of memory")
        assert [each.receipt_index for each in auditor.run_pass()] == [1]
        assert auditor.remaining == (0,)
        schedule.forget([0])
        assert [each.receipt_index for each in auditor.run_pass()] == [0]


def test_following_examines_what_arrives_until_it_is_stopped(deployment: Deployment) -> None:
    for number in range(3):
        deployment.receive(number)
    stop, called = stopped_after(3)
    follow(deployment.auditor(), stop, 0.01, called)
    assert [outcome for _, outcome in outcomes(deployment)] == ["EXACT"] * 3


def test_an_auditor_whose_key_nobody_trusts_yet_waits_for_that(deployment: Deployment) -> None:
    deployment.receive(0)
    (key,) = deployment.trusted.glob("auditor-*.pub")
    trusted = key.read_bytes()
    key.unlink()
    stop, called = stopped_after(1)
    following = threading.Thread(target=follow, args=(deployment.auditor(), stop, 0.01, called), daemon=True)
    following.start()
    following.join(0.3)
    assert following.is_alive()
    assert outcomes(deployment) == []
    key.write_bytes(trusted)
    following.join(60)
    assert outcomes(deployment) == [(0, "EXACT")]

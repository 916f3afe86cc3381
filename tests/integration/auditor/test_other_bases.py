"""Receipts of a base that an auditor does not have: owed while their time runs, for an auditor that has it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ledger.audit.obligation import OWED
from ledger.encoding.text_forms import cid, timestamp
from services.auditor.appender import Terms
from services.auditor.held_folder import HeldFolder
from tests.integration.auditor.deployment import Deployment, Replays
from tests.integration.auditor.test_passes import outcomes
from tests.mutations import replace
from tests.unit.ledger.builders import receipt, receipt_id

ANOTHER = cid(b"another base")
PROMISE = Terms(1.0, 3600)


def elsewhere() -> Replays:
    """An engine without that base."""
    replays = Replays()
    replays.elsewhere = {ANOTHER}
    return replays


def receive(deployment: Deployment, number: int, **changes: Any) -> int:
    """A receipt of this moment."""
    return deployment.receive(number, issued_at=timestamp(datetime.now(UTC)), **changes)


def test_it_is_left_owed_and_an_auditor_that_has_the_base_judges_it(deployment: Deployment) -> None:
    replays = elsewhere()
    auditor = deployment.auditor(PROMISE, spot_checks=0.0, replayer=replays)
    list(auditor.run_pass())
    other, own = receive(deployment, 0, base_cid=ANOTHER), receive(deployment, 1)
    assert [each.receipt_index for each in auditor.run_pass()] == [own]
    assert [(each.receipt_index, each.base_cid) for each in auditor.left] == [(other, ANOTHER)]
    (waiting,) = auditor.backlog.waiting()
    assert (waiting.index, waiting.state(timestamp(datetime.now(UTC)))) == (other, OWED)
    assert list(auditor.run_pass()) == []
    assert replays.asked.count(receipt_id(0)) == 1  # and not at every look

    assert [each.receipt_index for each in deployment.auditor(spot_checks=0.0).run_pass()] == [other]
    assert list(auditor.run_pass()) == []
    assert (auditor.left, outcomes(deployment)) == ((), [(own, "EXACT"), (other, "EXACT")])


def test_shortly_before_its_time_is_up_it_is_unreplayable_and_not_late(deployment: Deployment) -> None:
    moment = datetime.now(UTC) - timedelta(hours=1)  # its verdict must not be ahead of the ledger's clock
    auditor = deployment.auditor(PROMISE, spot_checks=0.0, replayer=elsewhere(), clock=lambda: moment)
    list(auditor.run_pass())
    index = deployment.receive(0, base_cid=ANOTHER, issued_at=timestamp(moment))
    moment += timedelta(minutes=44)
    assert list(auditor.run_pass()) == []
    moment += timedelta(minutes=2)
    (examined,) = auditor.run_pass()
    assert (examined.receipt_index, examined.finding.outcome, auditor.left) == (index, "UNREPLAYABLE", ())
    assert examined.finding.reason
    list(auditor.run_pass())
    assert auditor.backlog.waiting() == ()


def test_a_spot_check_without_a_promise_is_left_for_good(deployment: Deployment) -> None:
    index = receive(deployment, 0, base_cid=ANOTHER)
    auditor = deployment.auditor(spot_checks=1.0, replayer=elsewhere())
    assert list(auditor.run_pass()) == []
    assert [(each.receipt_index, each.until) for each in auditor.left] == [(index, None)]


def test_a_deviation_that_its_server_confessed_is_left_and_halts_once_the_base_is_there(deployment: Deployment) -> None:
    confessed = replace(receipt(0).spec_decode, verified_identical_to_off=False)
    receive(deployment, 0, base_cid=ANOTHER, spec_decode=confessed)
    without = deployment.auditor(spot_checks=0.0, replayer=elsewhere())
    assert (list(without.run_pass()), len(without.left)) == ([], 1)
    deployment.replays.lies = {receipt_id(0)}
    (examined,) = deployment.auditor(spot_checks=0.0).run_pass()
    assert (examined.finding.outcome, examined.halt_index is not None) == ("DEVIATION", True)


def test_a_pass_by_hand_does_not_wait_for_what_the_holder_of_the_folder_leaves(
    deployment: Deployment, tmp_path: Path
) -> None:
    with HeldFolder(tmp_path / "own") as held:
        holder = deployment.auditor(PROMISE, spot_checks=0.0, replayer=elsewhere(), folder=held)
        list(holder.run_pass())
        left, theirs = receive(deployment, 0, base_cid=ANOTHER), receive(deployment, 1)
        with HeldFolder(tmp_path / "own") as folder:
            by_hand = deployment.auditor(spot_checks=0.0, folder=folder)
            assert by_hand.in_other_hands()[1] == (left, theirs)
            assert [each.receipt_index for each in holder.run_pass()] == [theirs]
            assert by_hand.in_other_hands()[1] == ()
            assert [each.receipt_index for each in by_hand.run_pass()] == [left]
    with HeldFolder(tmp_path / "own") as folder:
        assert folder.left_by_holder() == frozenset()  # another holder may have another base

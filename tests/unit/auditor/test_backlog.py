"""The open work of an auditor, folded from a log, and its metrics."""

import json
from datetime import datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry

from ledger.documents.audit import Drift, ReferencePass, Verdict
from ledger.documents.halt import Scope
from ledger.documents.signed_document import Document, sign_document
from ledger.encoding.text_forms import cid
from ledger.keys.ed25519 import SigningKey
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.entry import Entry
from ledger.tree.merkle import Frontier, leaf_hash
from services.auditor.audit_error import BrokenLog
from services.auditor.backlog import Backlog
from services.auditor.serving import AuditorMetrics
from tests.keys import seeded_key
from tests.mutations import replace
from tests.unit.ledger.builders import (
    BASE,
    SCOPE,
    TRUSTED,
    draw,
    engine_profile,
    expiry,
    fold_obligations,
    foreign_receipt,
    halt,
    policy,
    receipt,
    resume,
    retention,
    signed,
    verdict,
)
from tests.unit.ledger.monitor.listed_log import ListedLog


def trust() -> TrustedKeys:
    return TRUSTED


def entries(*documents: Document | bytes) -> list[bytes]:
    """The entries of a log that holds these documents, or signed envelopes, in this order."""
    log = ListedLog()
    log.append(*documents)
    return log.entries


def root(log: list[bytes]) -> bytes:
    frontier = Frontier()
    for entry in log:
        frontier = frontier.append(leaf_hash(entry))
    return frontier.root()


def folded(log: list[bytes], spot_checks: float = 0.0) -> Backlog:
    """The backlog of an auditor that has read all of it."""
    backlog = Backlog(trust(), spot_checks)
    for entry in log:
        backlog.observe(entry)
    return backlog


ALL = policy(1.0)


def indexes(log: list[bytes], spot_checks: float = 0.0) -> list[int]:
    return list(folded(log, spot_checks).due())


def why(backlog: Backlog, index: int) -> str | None:
    due = backlog.receipt(index)
    assert due is not None
    return due.why


def test_receipts_are_due_until_a_verdict_names_them() -> None:
    log = entries(ALL, receipt(0), receipt(1), verdict(1, 0), receipt(2))
    assert indexes(log) == [2, 4]


def test_an_expiry_says_why_contents_are_gone() -> None:
    backlog = folded(entries(ALL, receipt(0), retention(), receipt(5), expiry(2, 4)))
    due = {index: backlog.receipt(index) for index in (1, 3)}
    assert due[1] is not None
    assert due[3] is not None
    assert due[1].erased == "the content was erased by entry 4, by the retention policy of entry 2"
    assert due[3].erased is None  # issued after the expiry's last receipt


@pytest.mark.parametrize("outcome", ["DEVIATION", "UNREPLAYABLE"])
def test_a_verdict_of_any_outcome_settles_its_receipt(outcome: str) -> None:
    assert indexes(entries(ALL, receipt(0), verdict(1, 0, outcome))) == []
    assert indexes(entries(receipt(0), verdict(0, 0, outcome)), spot_checks=1.0) == []


def test_a_receipt_without_a_promise_is_due_only_as_a_spot_check() -> None:
    log = entries(receipt(0), receipt(1))
    assert indexes(log) == []
    assert indexes(log, spot_checks=1.0) == [0, 1]
    many = entries(*(receipt(number) for number in range(60)))
    assert 0 < len(indexes(many, spot_checks=0.5)) < 60
    backlog = folded(many, 0.5)
    assert {why(backlog, index) for index in backlog.due()} == {"a spot check of 0.5 of all receipts"}


def drawn_log(count: int) -> list[bytes]:
    received = [policy(0.5), *(receipt(number) for number in range(count))]
    return entries(*received, draw(count + 1, root(entries(*received))))


def test_at_a_rate_between_nothing_is_due_before_the_draw_and_what_it_names_afterwards() -> None:
    log = drawn_log(30)
    before, after = folded(log[:-1]), folded(log)
    assert (before.due(), len(before.undrawn())) == ((), 30)
    owed = [one.index for one in fold_obligations(log).owed()]
    assert list(after.due()) == owed != []
    assert after.undrawn() == ()
    assert {why(after, index) for index in after.due()} == {"drawn at rate 0.5 by entry 31"}
    assert after.receipt(next(index for index in range(1, 31) if index not in owed)) is None


def test_a_policy_or_a_draw_by_a_stranger_promises_and_decides_nothing() -> None:
    stranger = seeded_key(b"\x09" * 32, "auditor")
    log = entries(sign_document(ALL, stranger).to_bytes(), receipt(0))
    assert (folded(log).policy, indexes(log)) == (None, [])
    received = [policy(0.5), receipt(0), receipt(1)]
    forged = sign_document(draw(3, root(entries(*received))), stranger).to_bytes()
    assert len(folded(entries(*received, forged)).undrawn()) == 2


def test_a_verdict_of_our_own_settles_before_its_entry_is_read() -> None:
    backlog = folded(entries(ALL, receipt(0), receipt(1)))
    backlog.settle(1)
    assert backlog.due() == (2,)
    assert backlog.receipt(1) is None


def test_a_receipt_that_says_itself_that_it_deviated_is_due_without_any_promise() -> None:
    confession = replace(receipt(0).spec_decode, verified_identical_to_off=False)
    assert indexes(entries(receipt(0, spec_decode=confession), receipt(1))) == [0]


def test_memory_grows_with_what_is_to_be_done_and_not_with_the_log() -> None:
    backlog = folded(drawn_log(30))
    assert sorted(backlog._receipts) == list(backlog.due())
    for index in sorted(backlog._receipts):
        envelope = Envelope.from_bytes(signed(verdict(index, index - 1)))
        backlog.observe(Entry(backlog.position, envelope).to_bytes())
    assert (backlog._receipts, backlog._settled, backlog._picked) == ({}, set(), set())


def test_a_deviation_asks_for_a_halt_until_one_stands_after_its_receipt() -> None:
    log = entries(receipt(0), verdict(0, 0, "DEVIATION"))
    backlog = folded(log)
    assert [index for index, _ in backlog.deviations()] == [1]
    assert backlog.needs_halt(SCOPE, 0)
    answered = folded(entries(receipt(0), verdict(0, 0, "DEVIATION"), halt(1)))
    assert not answered.needs_halt(SCOPE, 0)
    assert answered.needs_halt(Scope(BASE, "eagle3"), 0)


@pytest.mark.parametrize("chosen", [False, True])
def test_an_inconsistent_output_asks_for_a_halt_if_the_policy_in_force_says_so(chosen: bool) -> None:
    found = ReferencePass(BASE, 1.0, 2.0, 1)
    accusation = verdict(1, 0, "INCONSISTENT", verification="reference", replayed_by="auditor", reference=found)
    policies = replace(policy(0.0), halts_inconsistent=chosen), replace(policy(0.0), halts_inconsistent=not chosen)
    backlog = folded(entries(policies[0], foreign_receipt(0), accusation, policies[1]))
    assert [index for index, _ in backlog.deviations()] == ([2] if chosen else [])


def test_old_evidence_does_not_undo_a_resume_and_new_evidence_does() -> None:
    log = entries(
        receipt(0), receipt(1), verdict(0, 0, "DEVIATION"), halt(2), resume(3), receipt(2), verdict(1, 1, "DEVIATION")
    )
    backlog = folded(log)
    assert not backlog.needs_halt(SCOPE, 1)
    assert backlog.needs_halt(SCOPE, 5)


def test_a_verdict_by_a_stranger_settles_nothing() -> None:
    stranger = seeded_key(b"\x09" * 32, "auditor")
    forged = sign_document(verdict(1, 0), stranger).to_bytes()
    assert indexes(entries(ALL, receipt(0), forged)) == [1]


def test_an_entry_that_does_not_follow_is_a_broken_log() -> None:
    log = entries(receipt(0), receipt(1))
    backlog = folded(log[:1])
    with pytest.raises(BrokenLog, match="entry 1"):
        backlog.observe(entries(receipt(0), receipt(1), receipt(2))[2])
    with pytest.raises(BrokenLog, match="entry 1"):
        backlog.observe(log[0])
    with pytest.raises(BrokenLog, match="entry 1"):
        backlog.observe(b"{}")
    backlog.observe(log[1])
    assert (backlog.position, backlog.root) == (2, root(log))


def test_an_owed_verdict_becomes_overdue_while_no_reader_follows_the_log() -> None:
    registry, now = CollectorRegistry(), [datetime.fromisoformat(receipt(0).issued_at)]
    seconds = [0.0]
    metrics = AuditorMetrics(registry, lambda: seconds[0], lambda: now[0])
    metrics.read(folded(entries(policy(1.0), receipt(0), receipt(1))))

    def obligations(state: str) -> float | None:
        return registry.get_sample_value("kolm_auditor_obligations", {"state": state})

    assert (obligations("owed"), obligations("overdue"), obligations("undrawn")) == (2, 0, 0)
    assert registry.get_sample_value("kolm_auditor_entries_read") == 3
    now[0] += timedelta(days=365)
    seconds[0] = 30.0
    assert (obligations("owed"), obligations("overdue")) == (0, 2)
    assert registry.get_sample_value("kolm_auditor_last_pass_seconds") == 30.0


STORY = (
    policy(1.0),
    receipt(0),
    receipt(1),
    verdict(1, 1, "DEVIATION"),
    halt(3),
    receipt(2),
    policy(0.5),
    *(receipt(number) for number in range(3, 12)),
    verdict(2, 2),
    expiry(0, 9),
)


def state(backlog: Backlog) -> tuple[object, ...]:
    due = backlog.due()
    asks = [backlog.needs_halt(SCOPE, index) for index in range(len(STORY))]
    return (
        backlog.position, backlog.root, backlog.policy, due, [backlog.receipt(index) for index in due],
        backlog.owed(), backlog.undrawn(), backlog.waiting(), backlog.deviations(), asks,
    )  # fmt: skip


@pytest.mark.parametrize("spot_checks", [0.0, 1.0])
def test_a_fold_that_was_kept_goes_on_as_if_it_had_never_stopped(spot_checks: float) -> None:
    log = entries(*STORY)
    whole = Backlog(trust(), spot_checks)
    for data in log:
        whole.observe(data)
    for cut in range(len(log) + 1):
        first = Backlog(trust(), spot_checks)
        for data in log[:cut]:
            first.observe(data)
        kept = json.loads(json.dumps(first.to_document("example.org/log")))
        second = Backlog.from_document(kept, "example.org/log", trust(), spot_checks)
        assert second is not None
        assert state(second) == state(first)
        for data in log[cut:]:
            second.observe(data)
        assert state(second) == state(whole)


def test_a_fold_of_another_log_or_under_other_keys_is_not_gone_on_from() -> None:
    kept = Backlog(trust()).to_document("example.org/log")
    assert Backlog.from_document(kept, "example.org/other", trust()) is None
    assert Backlog.from_document(kept, "example.org/log", trust(), 0.5) is None
    assert Backlog.from_document(kept | {"version": 0}, "example.org/log", trust()) is None
    more = SigningKey.generate("auditor")
    keys = TrustedKeys({**trust().by_role, "auditor": (*trust().keys("auditor"), more.public)})
    assert Backlog.from_document(kept, "example.org/log", keys) is None


def test_another_profile_of_one_base_adds_to_the_same_sums() -> None:
    sums = Drift(1.5, 0.0, 0.0)
    seen = ReferencePass(BASE, 0.1, 2.5, 3, drift=sums)
    first, second = engine_profile(), engine_profile(version="0.33.0")
    how = {"verification": "reference", "replayed_by": "auditor", "reference": seen}
    one = replace(verdict(0, 0, "CONSISTENT", **how), profile_cid=cid(first.to_bytes()))
    elsewhere = engine_profile(base_cid=cid(b"another base"))
    log = entries(first, second, elsewhere, receipt(0), one)
    restored = Backlog.from_document(json.loads(json.dumps(folded(log).to_document("log"))), "log", trust())
    for backlog in (folded(log), restored):
        assert backlog is not None
        assert [backlog.drift(cid(each.to_bytes())) for each in (first, second, elsewhere)] == [sums, sums, None]


def test_what_outputs_show_together_is_what_the_newest_verdict_of_their_profile_says() -> None:
    one, more = (Drift(margin, 0.0, 0.0) for margin in (1.5, 2.5))

    def verdict_of(outcome: str, drift: Drift) -> Verdict:
        seen = ReferencePass(BASE, 0.1, 2.5, 3, drift=drift)
        how = {"verification": "reference", "replayed_by": "auditor", "reference": seen}
        return verdict(0, 0, outcome, **how)

    log = entries(receipt(0), verdict_of("CONSISTENT", one), verdict_of("CONSISTENT", more))
    backlog = folded(log)
    assert list(backlog.drifts.values()) == [more]
    kept = json.loads(json.dumps(backlog.to_document("log")))
    again = Backlog.from_document(kept, "log", trust())
    assert again is not None
    assert again.drifts == backlog.drifts
    assert not folded(entries(receipt(0), verdict_of("CONSISTENT", one), verdict_of("INCONSISTENT", more))).drifts

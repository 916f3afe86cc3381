"""A monitor stays silent about an honest log, for however long, and tells each lie."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ledger.audit.log_verification import verify_log
from ledger.documents.key_entry import KeyEntry
from ledger.documents.promise import Promise, sign_promise
from ledger.documents.signed_document import sign_document, sign_rotation
from ledger.documents.spec_decode import SpecDecode
from ledger.encoding.cid import cid
from ledger.errors import ProofError, StoreError
from ledger.keys.ed25519 import SigningKey
from ledger.keys.note import COSIGNATURE, Note, VerifierKey
from ledger.keys.trusted_keys import TrustedKeys
from ledger.monitor import finding as kinds
from ledger.monitor import monitor as monitor_module
from ledger.monitor.judgement import Limits, Promised
from ledger.monitor.memory import MonitorMemory
from ledger.monitor.monitor import Monitor
from ledger.tree.checkpoint import Checkpoint, open_checkpoint, sign_checkpoint
from ledger.tree.merkle import verify_consistency
from ledger.witness.cosignature import cosign
from ledger.witness.tlog_policy import Policy, PolicyWitness
from services.cli.jobs.monitor.memory import SqliteMonitorMemory
from tests.unit.ledger.builders import (
    BASE,
    KEYS,
    ORIGIN,
    PROFILE,
    START,
    TRUSTED,
    at,
    draw,
    expiry,
    halt,
    policy,
    publication,
    receipt,
    resume,
    retention,
    verdict,
)
from tests.unit.ledger.monitor.listed_log import ListedLog, ListedMemory

NOW = START + timedelta(seconds=500)
OTHER = cid(b"another base")


@pytest.fixture(params=["listed", "sqlite"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MonitorMemory]:
    if request.param == "listed":
        yield ListedMemory()
    else:
        with closing(SqliteMonitorMemory(tmp_path / "state.sqlite3")) as opened:
            yield opened


def told(
    log: ListedLog, memory: MonitorMemory, now: datetime = NOW, *promised: Promised, **limits: object
) -> list[str]:
    """The kinds of the findings of a monitor that has just started on what is remembered."""
    monitor = Monitor(memory, TRUSTED, Limits(**limits))  # type: ignore[arg-type]
    monitor.look(log, now)
    return [finding.kind for finding in monitor.findings(promised, now)]


def owed(count: int = 3, rate: float = 1.0) -> ListedLog:
    """A log whose receipts stand at the entries 1, 2, …"""
    log = ListedLog()
    log.append(policy(rate, 600), *(receipt(number) for number in range(count)))
    return log


def test_an_honest_log_stays_green_while_it_grows(memory: MonitorMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor_module, "_BATCH", 7)
    log = ListedLog()
    assert told(log, memory) == []
    log.append(policy(1.0, 600))
    for number in range(40):
        log.append(verdict(log.append(receipt(number)), number))
        if number % 3 == 0:
            assert told(log, memory, max_age=timedelta(hours=1)) == []
    assert told(log, memory) == []


def test_only_what_is_new_is_read_again(memory: MonitorMemory) -> None:
    log = ListedLog()
    log.append(policy(0.0), *(receipt(number) for number in range(1000)))
    assert told(log, memory, START + timedelta(hours=1)) == []
    log.append(receipt(1000))
    log.read_paths.clear()
    assert told(log, memory, START + timedelta(hours=1)) == []
    assert [path for path in log.read_paths if "entries" in path] == ["tile/entries/003.p/234"]
    log.read_paths.clear()
    assert told(log, memory, START + timedelta(hours=1)) == []
    assert log.read_paths == ["checkpoint"]


def test_what_is_saved_goes_on_where_it_was(memory: MonitorMemory) -> None:
    log = owed(rate=0.5)
    log.append(verdict(1, 0, "DEVIATION"), halt(4), resume(5), publication())
    assert told(log, memory) == []
    root = open_checkpoint(log.checkpoint(), [KEYS["log"].public]).root
    log.append(draw(len(log.entries), root, 80))
    assert told(log, memory) == []
    fresh = ListedMemory()
    assert told(log, fresh) == []
    assert memory.load() == fresh.load()


def test_two_trees_of_one_size_are_a_fork_for_ever(memory: MonitorMemory) -> None:
    log, other = owed(3), owed(2)
    other.append(receipt(9))
    assert told(log, memory) == []
    assert told(other, memory) == [kinds.FORK]
    assert told(log, memory) == [kinds.FORK]
    (evidence,) = memory.accusations(kinds.FORK)
    assert (evidence.older, evidence.newer) == (log.checkpoint(), other.checkpoint())


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_log_that_grew_on_another_branch_is_a_fork_with_proof(memory: MonitorMemory, size: int) -> None:
    log, other = owed(size - 1), owed(0)
    other.append(*(receipt(number) for number in range(50, 60)))
    if size == 1:  # another first entry
        other = ListedLog()
        other.append(*(receipt(number) for number in range(50, 60)))
    assert told(log, memory) == []
    assert told(other, memory) == [kinds.FORK]
    (evidence,) = memory.accusations(kinds.FORK)
    older, newer = (open_checkpoint(note, [KEYS["log"].public]) for note in (evidence.older, evidence.newer))
    verify_consistency(older.size, newer.size, evidence.proof, evidence.shown_root, newer.root)
    assert evidence.shown_root != older.root  # what the log has signed for that size


def test_a_log_that_was_rolled_back_is_told_until_it_is_back(memory: MonitorMemory) -> None:
    log = owed(5)
    assert told(log, memory) == []
    assert told(ListedLog(log.entries[:3]), memory) == [kinds.ROLLBACK]
    (evidence,) = memory.accusations(kinds.ROLLBACK)
    assert (evidence.older, evidence.newer) == (log.checkpoint(3), log.checkpoint())
    log.append(receipt(30))
    assert told(log, memory) == []


def test_tiles_that_do_not_lead_to_the_checkpoint_are_told(memory: MonitorMemory) -> None:
    log = owed(3)
    assert told(log, memory) == []
    log.append(receipt(8))
    log.overlay["tile/0/000.p/5"] = bytes(5 * 32)
    assert told(log, memory) == [kinds.UNPROVEN]
    log.overlay = {"tile/entries/000.p/5": b"\x00"}
    assert told(log, memory) == [kinds.UNPROVEN]
    log.overlay = {}
    assert told(log, memory) == []


def test_other_entries_than_those_that_were_signed_are_not_remembered(memory: MonitorMemory) -> None:
    log, other = owed(3), owed(2)
    other.append(receipt(9))
    log.overlay["tile/entries/000.p/4"] = other.read("tile/entries/000.p/4", 10**6)
    assert told(log, memory) == [kinds.UNPROVEN]
    assert not memory.knows(receipt(0).receipt_id)
    log.overlay = {}
    assert told(log, memory) == []


def test_a_checkpoint_of_somebody_else_is_told(memory: MonitorMemory) -> None:
    log = owed(3)
    stranger = SigningKey.from_seed(b"\x09" * 32, "log")
    for note in (
        log.checkpoint(key=stranger),
        b"no note",
        b"",
        sign_checkpoint(Checkpoint("a/b", 4, b"1" * 32), log.key),
    ):
        log.overlay["checkpoint"] = note
        assert told(log, memory, origin=ORIGIN) == [kinds.CHECKPOINT]
    log.overlay = {}
    assert told(log, memory) == []


def wrong_chain(log: ListedLog) -> None:
    log.entries.append(log.entries[-1])


def second_receipt(log: ListedLog) -> None:
    log.append(receipt(0))


def unsigned(log: ListedLog) -> None:
    log.append(sign_document(receipt(20), SigningKey.from_seed(b"\x0a" * 32, "receipts")).to_bytes())


def halt_of_nothing(log: ListedLog) -> None:
    log.append(halt(1))


@pytest.mark.parametrize("harm", [wrong_chain, second_receipt, unsigned, halt_of_nothing])
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


def test_a_document_that_is_dated_ahead_is_told_until_then(memory: MonitorMemory) -> None:
    log = owed(1)
    log.append(verdict(1, 0), receipt(9, issued_at=at(5000)), verdict(3, 9, replayed_at=at(5000)))
    assert told(log, memory, START + timedelta(seconds=1)) == [kinds.INVALID]
    assert told(log, memory, START + timedelta(seconds=4699)) == [kinds.INVALID]
    assert told(log, memory, START + timedelta(seconds=4701)) == []


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
    block = SpecDecode("eagle3", "auto", 4, 2, 1, head_cid=cid(b"head"))
    log = owed(0)
    log.append(publication(base_cid=OTHER), receipt(1, spec_decode=block))
    assert told(log, memory) == [kinds.HEAD]


def promise(number: int, choices: int = 1) -> Promise:
    made = receipt(number)
    return Promise(
        promised_at=at(0),
        due=at(300),
        tenant=made.tenant,
        request_id=made.request_id,
        nonce=made.nonce,
        base_cid=BASE,
        profile_cid=PROFILE,
        prompt=made.prompt,
        choices=choices,
    )


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
    forged = Promised("x", sign_promise(promise(1), SigningKey.from_seed(b"\x0b" * 32, "receipts")).to_bytes())
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


def test_a_log_that_does_not_grow_is_stale(memory: MonitorMemory) -> None:
    log = ListedLog()
    log.append(policy(0.0), receipt(0))
    hour = timedelta(hours=1)
    assert told(log, memory, START + hour, max_age=hour) == []
    assert told(log, memory, START + hour * 1.1, max_age=hour) == [kinds.STALE]
    log.append(receipt(2000))
    assert told(log, memory, START + hour * 1.2, max_age=hour) == []
    assert told(log, memory, START + hour * 1.7, max_age=hour) == [kinds.STALE]  # by the document's own date


def test_a_log_that_had_stopped_before_the_monitor_came_is_stale(memory: MonitorMemory) -> None:
    log = ListedLog()
    log.append(policy(0.0), receipt(0))
    assert told(log, memory, START + timedelta(days=2), max_age=timedelta(days=1)) == [kinds.STALE]


class WitnessedLog(ListedLog):
    """Shows its checkpoints with a cosignature of a time."""

    cosigned_at: int | None = None

    def checkpoint(self, size: int | None = None, key: SigningKey | None = None) -> bytes:
        note = Note.from_bytes(super().checkpoint(size, key))
        if self.cosigned_at is not None:
            line = cosign(note.text, "w.example/w", KEYS["witness"], self.cosigned_at)
            note = replace(note, signatures=(*note.signatures, line))
        return note.to_bytes()


def test_with_witnesses_the_age_is_by_their_word(memory: MonitorMemory) -> None:
    witness = VerifierKey("w.example/w", KEYS["witness"].public, COSIGNATURE)
    policy_file = Policy(logs=(), witnesses=(PolicyWitness("w", witness),), quorum="w")
    log = WitnessedLog()
    log.append(policy(1.0, 600), receipt(0))
    hour = timedelta(hours=1)
    assert told(log, memory, START, max_age=hour, policy=policy_file) == [kinds.STALE]  # nobody vouches
    log.cosigned_at = int((START + hour).timestamp()) - 3600 + 500
    assert told(log, memory, START + hour, max_age=hour, policy=policy_file) == []
    assert told(log, memory, START + hour * 3, max_age=hour, policy=policy_file) == [kinds.STALE]
    log.cosigned_at += 200  # what was due at 600 is missing once witnesses have seen a tree without it
    assert told(log, memory, START + hour, max_age=hour, policy=policy_file) == [kinds.OVERDUE]


def test_a_log_whose_key_was_replaced_is_followed_and_its_old_key_is_not(memory: MonitorMemory) -> None:
    log = owed(2)
    assert told(log, memory, START) == []
    successor = SigningKey.from_seed(b"\x31" * 32, "log")
    rotation = KeyEntry("log", successor.public, at(20), replaces=KEYS["log"].key_id)
    log.append(sign_rotation(rotation, successor, KEYS["log"]).to_bytes(), receipt(30))
    assert told(log, memory, START) == [kinds.CHECKPOINT]
    log.key = successor
    assert told(log, memory, START) == []
    log.append(receipt(31))
    assert told(log, memory, START) == []
    log.key = KEYS["log"]
    log.append(receipt(32))
    assert told(log, memory, START) == [kinds.CHECKPOINT]


def test_a_state_of_another_version_or_damaged_is_refused(tmp_path: Path) -> None:
    for wrong in ({"version": 2}, {"version": 1}, {}):
        memory = ListedMemory(summary=wrong)
        with pytest.raises(StoreError):
            Monitor(memory, TRUSTED, Limits())


def test_a_batch_that_fails_leaves_nothing(memory: MonitorMemory) -> None:
    def fail() -> None:
        with memory.batch():
            memory.remember(0, receipt(0))
            memory.save({"version": 1})
            raise ProofError("no")

    with pytest.raises(ProofError):
        fail()
    assert (memory.load(), memory.knows(receipt(0).receipt_id)) == (None, False)


def test_expiries_are_held_against_the_policies_that_were_read_before(memory: MonitorMemory) -> None:
    log = ListedLog()
    log.append(retention(days=None, tenant="acme"), retention(days=90), retention(days=30), receipt(0))
    assert told(log, memory) == []
    log.append(expiry(2, 4, except_tenants=("acme",)))
    assert told(log, memory) == []
    log.append(expiry(1, 4, except_tenants=("acme",)))
    assert told(log, memory) == [kinds.INVALID]


def test_a_key_that_signed_before_it_was_introduced_is_told() -> None:
    successor = SigningKey.from_seed(b"\x32" * 32, "receipts")
    rotation = KeyEntry("receipts", successor.public, at(20), replaces=KEYS["receipts"].key_id)
    log = ListedLog()
    log.append(sign_document(receipt(0), successor).to_bytes())
    log.append(sign_rotation(rotation, successor, KEYS["receipts"]).to_bytes())
    trusted = TrustedKeys.of(*KEYS.values(), successor)
    report = verify_log(log.entries, None, trusted)
    assert (report.bad_index, "was in use before the entry" in str(report.problem)) == (1, True)
    monitor = Monitor(ListedMemory(), trusted, Limits())
    monitor.look(log, START)
    assert [finding.kind for finding in monitor.findings((), START)] == [kinds.INVALID]


def test_a_monitor_that_runs_on_takes_back_what_did_not_hold(memory: MonitorMemory) -> None:
    log, other = owed(3), owed(2)
    other.append(receipt(9))
    monitor = Monitor(memory, TRUSTED, Limits())
    log.overlay["tile/entries/000.p/4"] = other.read("tile/entries/000.p/4", 10**6)
    monitor.look(log, NOW)
    assert ([finding.kind for finding in monitor.findings((), NOW)], monitor.size) == ([kinds.UNPROVEN], 0)
    log.overlay = {}
    monitor.look(log, NOW)
    assert (monitor.findings((), NOW), monitor.size) == ([], 4)


def test_the_summary_does_not_grow_with_the_log(memory: MonitorMemory) -> None:
    log, sizes = ListedLog(), []
    log.append(policy(1.0, 600))
    for number in range(400):
        log.append(verdict(log.append(receipt(number)), number, replayed_at=at(number)))
        if number in (40, 399):
            assert told(log, memory, START + timedelta(seconds=number)) == []
            sizes.append(len(json.dumps(memory.load())))
    assert sizes[1] < 1.3 * sizes[0]  # some hashes more at the edge of the tree

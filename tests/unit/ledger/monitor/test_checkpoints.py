"""A monitor reports forks, rollbacks and logs that do not grow, reads new entries alone, and keeps its memory."""

import json
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from ledger.bundle.tiles import entry_bundle
from ledger.documents.key_entry import KeyEntry
from ledger.documents.signed_document import sign_rotation
from ledger.errors import ProofError, StoreError
from ledger.keys.ed25519 import SigningKey
from ledger.keys.envelope import Envelope
from ledger.keys.note import COSIGNATURE, Note, VerifierKey
from ledger.monitor import finding as kinds
from ledger.monitor import monitor as monitor_module
from ledger.monitor.judgement import Limits
from ledger.monitor.memory import MonitorMemory
from ledger.monitor.monitor import Monitor
from ledger.tree.checkpoint import Checkpoint, open_checkpoint, sign_checkpoint
from ledger.tree.entry import Entry
from ledger.tree.merkle import verify_consistency
from ledger.witness.cosignature import cosign
from ledger.witness.tlog_policy import Policy, PolicyWitness
from tests.keys import seeded_key
from tests.mutations import replace
from tests.unit.ledger.builders import (
    KEYS,
    ORIGIN,
    START,
    TRUSTED,
    at,
    draw,
    halt,
    policy,
    publication,
    receipt,
    resume,
    retention,
    verdict,
)
from tests.unit.ledger.monitor.listed_log import NOW, ListedLog, owed, told


def test_two_trees_of_one_size_stay_a_fork(memory: MonitorMemory) -> None:
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


def test_a_checkpoint_of_another_log_is_reported(memory: MonitorMemory) -> None:
    log = owed(3)
    stranger = seeded_key(b"\x09" * 32, "log")
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


@pytest.mark.parametrize("entry", [lambda _: b"{}", lambda index: Entry(index, Envelope(b"{}", "x", ())).to_bytes()])
def test_made_up_entries_under_an_unsigned_checkpoint_do_not_keep_a_monitor_reading(
    entry: Callable[[int], bytes], memory: MonitorMemory
) -> None:
    class Endless(ListedLog):
        def read(self, path: str, most: int) -> bytes:
            self.read_paths.append(path)
            assert len(self.read_paths) < 100
            if path == "checkpoint":
                return sign_checkpoint(Checkpoint(ORIGIN, 2**62, bytes(32)), seeded_key(b"\x09" * 32, "log"))
            if not path.startswith("tile/entries/"):
                return bytes(256 * 32)
            number = int(path.removeprefix("tile/entries/").replace("x", "").replace("/", ""))
            return entry_bundle([entry(256 * number + place) for place in range(256)])

    assert told(Endless(), memory) == [kinds.CHECKPOINT]


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
    assert told(log, memory, START, max_age=hour, policy=policy_file) == [kinds.STALE]  # no witness vouches
    log.cosigned_at = int((START + hour).timestamp()) - 3600 + 500
    assert told(log, memory, START + hour, max_age=hour, policy=policy_file) == []
    assert told(log, memory, START + hour * 3, max_age=hour, policy=policy_file) == [kinds.STALE]
    log.cosigned_at += 200  # what was due at 600 is missing once witnesses have seen a tree without it
    assert told(log, memory, START + hour, max_age=hour, policy=policy_file) == [kinds.OVERDUE]


def test_a_log_whose_key_was_replaced_is_followed_and_its_old_key_is_not(memory: MonitorMemory) -> None:
    log = owed(2)
    assert told(log, memory, START) == []
    successor = seeded_key(b"\x31" * 32, "log")
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


def test_what_is_saved_goes_on_where_it_was(memory: MonitorMemory, tmp_path: Path) -> None:
    log = owed(rate=0.5)
    log.append(verdict(1, 0, "DEVIATION"), halt(4), resume(5), publication())
    assert told(log, memory) == []
    root = open_checkpoint(log.checkpoint(), [KEYS["log"].public]).root
    log.append(draw(len(log.entries), root, 80))
    assert told(log, memory) == []
    with closing(MonitorMemory(tmp_path / "fresh.sqlite3")) as fresh:
        assert told(log, fresh) == []
        assert memory.load() == fresh.load()


def test_a_state_of_another_version_or_damaged_is_refused(memory: MonitorMemory) -> None:
    for wrong in ({"version": 2}, {"version": 1}, {}):
        memory.save(wrong)
        with pytest.raises(StoreError):
            Monitor(memory, TRUSTED, Limits())


@pytest.mark.parametrize("damaged", ["[", "[" * 100_000], ids=["cut off", "deep"])
def test_a_damaged_value_is_an_error_of_the_state(memory: MonitorMemory, damaged: str) -> None:
    memory.remember(0, receipt(0))
    memory.remember(1, retention(1))
    memory.save({})
    reads = {"summary": memory.load, "retentions": memory.retentions, "served": lambda: memory.served_in(0)}
    for (table, read), column in zip(reads.items(), ("document", "policy", "scopes"), strict=True):
        memory._state.write(f"UPDATE {table} SET {column} = ?", damaged)
        with pytest.raises(StoreError):
            read()


def test_a_batch_that_fails_leaves_nothing(memory: MonitorMemory) -> None:
    def fail() -> None:
        with memory.batch():
            memory.remember(0, receipt(0))
            memory.save({"version": 1})
            raise ProofError("no")

    with pytest.raises(ProofError):
        fail()
    assert (memory.load(), memory.knows(receipt(0).receipt_id)) == (None, False)


def test_a_monitor_that_runs_on_takes_back_what_did_not_hold(memory: MonitorMemory) -> None:
    log, other = owed(3), owed(2)
    other.append(receipt(9))
    monitor = Monitor(memory, TRUSTED, Limits())
    log.overlay["tile/entries/000.p/4"] = other.read("tile/entries/000.p/4", 10**6)
    monitor.poll(log, NOW)
    assert ([finding.kind for finding in monitor.findings((), NOW)], monitor.size) == ([kinds.UNPROVEN], 0)
    log.overlay = {}
    monitor.poll(log, NOW)
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

"""A monitor stays silent about an honest log, for however long, and tells each lie."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from ledger.errors import ProofError, StoreError
from ledger.monitor import finding as kinds
from ledger.monitor import monitor as monitor_module
from ledger.monitor.judgement import Limits
from ledger.monitor.memory import MonitorMemory
from ledger.monitor.monitor import Monitor
from ledger.tree.checkpoint import open_checkpoint
from tests.unit.ledger.builders import (
    KEYS,
    START,
    TRUSTED,
    at,
    draw,
    halt,
    policy,
    publication,
    receipt,
    resume,
    verdict,
)
from tests.unit.ledger.monitor.listed_log import NOW, ListedLog, ListedMemory, owed, told


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

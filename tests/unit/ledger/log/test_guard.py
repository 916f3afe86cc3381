"""The guard and recovery: an old backup is refused, a crash is not taken for one."""

from typing import cast

import pytest

from ledger.errors import ChainError, RolledBack, StoreLocked
from ledger.log.admission import admit
from ledger.log.recovery import recover
from ledger.log.store import EntryStore
from ledger.log.writer import LogWriter
from ledger.tree.checkpoint import Checkpoint
from tests.unit.ledger.builders import KEYS, ORIGIN, TRUSTED, signed_receipt
from tests.unit.ledger.log.memory_store import MemoryEntryStore, MemoryGuard


def reopen(store: MemoryEntryStore, guard: MemoryGuard) -> LogWriter:
    return recover(cast(EntryStore, store), KEYS["log"], TRUSTED, ORIGIN, guard)


def write(writer: LogWriter, *numbers: int) -> None:
    writer.write([admit(signed_receipt(number), None, TRUSTED) for number in numbers])


def backup(store: MemoryEntryStore) -> MemoryEntryStore:
    copy = MemoryEntryStore()
    copy._records, copy._tiles, copy._checkpoints = [*store._records], dict(store._tiles), dict(store._checkpoints)
    return copy


def test_the_guard_holds_the_newest_head_from_the_first_start_on() -> None:
    store, guard = MemoryEntryStore(), MemoryGuard()
    writer = reopen(store, guard)
    assert guard.read(ORIGIN) == writer.head.checkpoint
    write(writer, 0, 1)
    assert guard.read(ORIGIN) == writer.head.checkpoint
    assert writer.head.size == 2
    assert guard.read("another.example/log") is None


def test_a_restored_backup_is_refused_and_both_heads_are_named() -> None:
    store, guard = MemoryEntryStore(), MemoryGuard()
    writer = reopen(store, guard)
    write(writer, 0, 1)
    old, old_root = backup(store), writer.head.checkpoint.root.hex()
    write(writer, 2, 3, 4)
    with pytest.raises(RolledBack) as caught:
        reopen(old, guard)
    message = str(caught.value)
    assert "holds 2 entries (the head over 2 entries with root " + old_root in message
    assert "the head over 5 entries with root " + writer.head.checkpoint.root.hex() in message
    assert "bring back the database that holds entry 4" in message
    assert old.size() == 2
    assert reopen(store, guard).head == writer.head  # the newest database is welcome back


def test_an_empty_database_in_place_of_the_log_is_refused() -> None:
    guard = MemoryGuard()
    write(reopen(MemoryEntryStore(), guard), 0)
    with pytest.raises(RolledBack):
        reopen(MemoryEntryStore(), guard)


def test_a_database_that_forked_off_before_the_guarded_head_is_refused() -> None:
    store, guard = MemoryEntryStore(), MemoryGuard()
    write(reopen(store, guard), 0)
    fork = backup(store)
    write(reopen(store, guard), 1)
    write(recover(cast(EntryStore, fork), KEYS["log"], TRUSTED, ORIGIN), 2, 3)
    with pytest.raises(ChainError) as caught:
        reopen(fork, guard)
    assert caught.value.index == 1


def test_a_guard_that_is_new_or_behind_is_brought_up_to_date() -> None:
    store, stale = MemoryEntryStore(), MemoryGuard()
    write(reopen(store, stale), 0)
    write(reopen(store, MemoryGuard()), 1, 2)
    for guard in (MemoryGuard(), stale):
        assert guard.read(ORIGIN) != reopen(store, guard).head.checkpoint or guard is not stale
        assert guard.read(ORIGIN) == reopen(store, guard).head.checkpoint


def test_a_crash_between_commit_and_guard_or_between_guard_and_signature_is_no_backup() -> None:
    straight, guard = MemoryEntryStore(), MemoryGuard()
    write(reopen(straight, guard), 0, 1)
    committed = backup(straight)
    del committed._checkpoints[2]  # the guard was swapped, the checkpoint not recorded
    assert reopen(committed, guard).head.note == straight.latest_checkpoint()
    behind = MemoryGuard()
    behind.compare_and_swap(None, Checkpoint(ORIGIN, 0, reopen(MemoryEntryStore(), MemoryGuard()).head.checkpoint.root))
    del committed._checkpoints[2]  # committed, and nothing after that
    assert reopen(committed, behind).head.note == straight.latest_checkpoint()
    assert behind.read(ORIGIN) == guard.read(ORIGIN)


def test_nothing_is_signed_where_the_guard_has_moved_on() -> None:
    store, guard = MemoryEntryStore(), MemoryGuard()
    stale = reopen(store, guard)
    head = guard.read(ORIGIN)
    guard.compare_and_swap(head, Checkpoint(ORIGIN, 1, bytes(32)))  # another process was faster
    with pytest.raises(StoreLocked):
        write(stale, 1)
    assert list(store._checkpoints) == [0]
    assert stale.head.checkpoint == head

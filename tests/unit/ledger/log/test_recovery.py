"""Recovery, with a guard and without: what was lost or changed is refused, and a crash is taken for no backup."""

from collections.abc import Sequence
from typing import cast

import pytest

from ledger.documents.halt import Scope
from ledger.documents.signed_document import sign_document
from ledger.errors import ChainError, FormatError, LedgerError, RolledBack, SignatureError, StoreLocked
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.admission import admit
from ledger.log.recovery import recover
from ledger.log.store import Batch, EntryStore
from ledger.log.writer import LogWriter
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.tile import Tile, TileEdge
from tests.keys import seeded_key
from tests.mutations import replace
from tests.unit.ledger.builders import (
    BASE,
    KEYS,
    ORIGIN,
    STRANGER,
    TRUSTED,
    halt,
    receipt,
    signed,
    signed_receipt,
    verdict,
)
from tests.unit.ledger.log.memory_store import MemoryEntryStore, MemoryGuard


def reopen(store: object, guard: MemoryGuard | None = None) -> LogWriter:
    return recover(cast(EntryStore, store), KEYS["log"], TRUSTED, ORIGIN, guard or MemoryGuard())


def broken_at(store: object, guard: MemoryGuard | None = None) -> int:
    """The entry for which a log is not opened."""
    with pytest.raises(ChainError) as caught:
        reopen(store, guard)
    return caught.value.index


def filled(count: int) -> MemoryEntryStore:
    store = MemoryEntryStore()
    writer = reopen(store)
    for start in range(0, count, 100):
        numbers = range(start, min(start + 100, count))
        writer.write([admit(signed_receipt(number), None, TRUSTED) for number in numbers])
    return store


@pytest.mark.parametrize("size", [0, 1, 2, 255, 256, 257, 300])
def test_a_reopened_writer_goes_on_as_if_it_had_never_stopped(size: int) -> None:
    store = filled(size)
    head = reopen(store).head
    assert head.note == store.latest_checkpoint()
    answer = reopen(store).write([admit(signed_receipt(size), None, TRUSTED)])[0]
    straight = filled(size + 1)
    assert not isinstance(answer, LedgerError)
    assert answer.entry == straight.entry(size)
    assert store.latest_checkpoint() == straight.latest_checkpoint()


def test_the_halt_state_is_read_from_the_entries() -> None:
    store = MemoryEntryStore()
    writer = reopen(store)
    for document in (receipt(0), verdict(0, 0, "DEVIATION"), halt(1)):
        writer.write([admit(signed(document), None, TRUSTED)])
    assert reopen(store).head.halts == writer.head.halts
    assert [each.scope for each in reopen(store).head.halts.open] == [Scope(BASE, "lookahead")]


def test_entries_that_no_checkpoint_covers_are_checked_and_signed() -> None:
    straight, store = filled(5), filled(3)
    records = [straight._records[index] for index in (3, 4)]
    store.commit(Batch(tuple(records), _tiles(straight)))
    assert reopen(store).head.size == 5
    assert store.latest_checkpoint() == straight.latest_checkpoint()


def test_entries_that_no_checkpoint_covers_are_not_signed_for_a_stranger() -> None:
    trusting = TrustedKeys.of(*KEYS.values(), STRANGER)
    intruder = MemoryEntryStore()
    writer = recover(cast(EntryStore, intruder), KEYS["log"], trusting, ORIGIN, MemoryGuard())
    document = receipt(3)
    for data in [*(signed_receipt(number) for number in range(3)), sign_document(document, STRANGER).to_bytes()]:
        writer.write([admit(data, None, trusting)])
    store = filled(3)
    store.commit(Batch((intruder._records[3],), _tiles(intruder)))
    assert broken_at(store) == 3


def test_an_entry_that_is_counted_and_not_there_is_not_signed_over() -> None:
    class Short(MemoryEntryStore):
        def entries(self, start: int, limit: int) -> Sequence[bytes]:
            return super().entries(start, min(limit, max(4 - start, 0)))

    straight, store = filled(5), Short()
    store.commit(Batch(tuple(straight._records), _tiles(straight)))
    assert broken_at(store) == 4


def test_an_entry_that_says_it_is_another_is_not_signed_over() -> None:
    store, moved = filled(3), replace(filled(5)._records[4], index=3)
    _, tiles = TileEdge().append([record.leaf for record in (*store._records, moved)])
    store.commit(Batch((moved,), tuple(tiles)))
    assert broken_at(store) == 3


def _tiles(store: MemoryEntryStore) -> tuple[Tile, ...]:
    return tuple(Tile(level, number, hashes) for (level, number), hashes in store._tiles.items())


def test_a_log_that_lost_entries_is_not_opened() -> None:
    store = filled(5)
    del store._records[3:]
    assert broken_at(store) == 3


@pytest.mark.parametrize("index", [256, 270, 299])
def test_a_changed_entry_in_the_last_tile_is_named(index: int) -> None:
    store = filled(300)
    record = store._records[index]
    store._records[index] = replace(record, entry=record.entry.replace(b"receipt", b"recepit"))
    assert broken_at(store) == index


def test_tiles_that_are_not_those_of_the_checkpoint_are_refused() -> None:
    for level, number in ((0, 0), (0, 1), (1, 0)):
        store = filled(300)
        hashes = store._tiles[level, number]
        store._tiles[level, number] = hashes[:-1] + bytes([hashes[-1] ^ 1])
        if (level, number) == (0, 0):
            reopen(store)  # full tiles are vouched for by the level above; `verify_log` reads the entries under them
            continue
        with pytest.raises(ChainError):
            reopen(store)
    store, guard = filled(300), MemoryGuard()
    reopen(store, guard)
    del store._tiles[1, 0]
    for each in (MemoryGuard(), guard):
        assert broken_at(store, each) == 299


def test_a_checkpoint_of_another_key_or_log_is_refused() -> None:
    store = filled(2)
    with pytest.raises(FormatError, match=r"other\.example"):
        recover(cast(EntryStore, store), KEYS["log"], TRUSTED, "other.example/log", MemoryGuard())
    other = seeded_key(b"\x01" * 32, "log")
    with pytest.raises(SignatureError):
        recover(cast(EntryStore, store), other, TrustedKeys.of(other), ORIGIN, MemoryGuard())
    assert (
        recover(cast(EntryStore, store), other, TRUSTED, ORIGIN, MemoryGuard()).head.size == 2
    )  # a rotated key, the old one trusted
    with pytest.raises(FormatError):
        recover(cast(EntryStore, store), KEYS["receipts"], TRUSTED, ORIGIN, MemoryGuard())
    with pytest.raises(FormatError, match="origin"):
        recover(cast(EntryStore, store), KEYS["log"], TRUSTED, "two words", MemoryGuard())


def test_a_checkpoint_over_another_tree_is_refused() -> None:
    store = filled(3)
    store._checkpoints[3] = sign_checkpoint(Checkpoint(ORIGIN, 3, bytes(32)), KEYS["log"])
    assert broken_at(store) == 2


def test_an_entry_that_does_not_chain_is_refused() -> None:
    straight, store = filled(5), filled(3)
    record = straight._records[4]
    store.commit(Batch((replace(record, index=3, content=None),), _tiles(straight)))
    assert broken_at(store) == 3


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
    assert (caught.value.size, caught.value.seen) == (2, 5)
    assert {root in str(caught.value) for root in (old_root, writer.head.checkpoint.root.hex())} == {True}
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
    write(reopen(fork), 2, 3)
    assert broken_at(fork, guard) == 1


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
